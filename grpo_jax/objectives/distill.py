"""On-policy distillation: the student samples, the teacher says what it thinks of each token.

    coefficient of grad log pi = log(pi_teacher / pi) = the per-token gradient of -KL(pi || pi_teacher)

The teacher is the reference tree: its log-probs come as `ref_logprobs`. With several updates a rollout the term is
clipped as GRPO's is; A is taken from the live policy, so that it turns round where the teacher has been reached. A
token's effect on later tokens is not credited (gamma = 0), as is usual. No reward function is asked.
"""

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.objectives import common
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

importance_ratio = common.token_ratio
DATA = ("live",)
READS = frozenset({"mask_truncated", "mismatch"})


def needs(cfg) -> frozenset[str]:
  """The teacher."""
  del cfg
  return frozenset({"ref"})


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Masks and weights; advantages are the loss's own, from the live policy.

  Raises:
    SettingError: no teacher log-probs.
  """
  common.require(rollouts.ref_logprobs, "ref_logprobs (the teacher's)", cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  return common.train_batch(rollouts, cfg, jnp.zeros_like(mask), mask)


def live_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """log(pi_teacher / pi), [P, G, L]."""
  return jax.lax.stop_gradient(common.on_mask(batch.ref_logprobs - logprobs, batch.mask))


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """The clipped surrogate with A = log(pi_teacher / pi): sum(weights * token loss), and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  batch = dataclasses.replace(batch, advantages=live_advantages(logprobs, batch))
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper) * common.mismatch(old, batch, cfg)
  metrics = common.policy_metrics(outputs, batch) | common.ratio_metrics(outputs, batch, cfg, importance_ratio, gain)
  return -jnp.sum(batch.weights * gain), metrics
