"""On-policy distillation: the student samples, and the teacher rates each token.

    coefficient of grad log pi = log(pi_teacher / pi) = the per-token gradient of -KL(pi ||
    pi_teacher)

The teacher is the reference tree, with its log-probs in `ref_logprobs`. With several updates on a
rollout the term is clipped like GRPO's. A comes from the live policy, so that it changes its sign
once the policy passes the teacher. A token's effect on later tokens is not credited (gamma = 0), as
is usual. No reward is computed.
"""

import dataclasses

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective, needs_reference
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of on-policy distillation."""
  c = shared_settings.clipped()
  for unread in ("beta", "clip_delta"):
    del c[unread]
  return c


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns masks and weights; the advantages are made in the loss, from the live policy."""
  del advantages
  common.require(rollouts.ref_logprobs, "ref_logprobs (the teacher's)", cfg.name)
  return common.taught_batch(rollouts, cfg)


def live_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """Returns log(pi_teacher / pi) of each token, [P, G, L]."""
  teacher = common.require(batch.ref_logprobs, "ref_logprobs (the teacher's)", "distill")
  return jax.lax.stop_gradient(common.on_mask(teacher - logprobs, batch.mask))


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns minus the clipped surrogate with A = log(pi_teacher / pi), and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  batch = dataclasses.replace(batch, advantages=live_advantages(logprobs, batch))
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.clip_bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper) * common.mismatch(
    logprobs, old, batch, cfg
  )
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(outputs, batch, cfg, common.token_ratio, (lower, upper), gain)
  return -jnp.sum(batch.weights * gain), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  needs=needs_reference,
  teacher="ref_from",
  importance_ratio=common.token_ratio,
  bounds=common.clip_bounds,
  live_advantages=live_advantages,
  flat=common.flat_never,
)
