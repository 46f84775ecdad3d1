"""On-policy distillation: the student samples, and the teacher rates each token.

    coefficient of grad log pi = log(pi_teacher / pi) = the per-token gradient of -KL(pi ||
    pi_teacher)

The teacher is the reference tree: its log-probs come as `ref_logprobs`. With several updates a
rollout the term is clipped as GRPO's is; A is taken from the live policy, so that it changes its
sign once the teacher has been passed. A token's effect on later tokens is not credited (gamma = 0),
as is usual. No reward function is asked.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("live",)
TEACHER = "ref_from"
importance_ratio = common.token_ratio
weights = common.weights
bounds = common.clip_bounds
flat = common.flat_never


def settings() -> ConfigDict:
  """Returns the settings of on-policy distillation."""
  c = ConfigDict()
  c.clip_low = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
  c.clip_high = 0.2
  # mask_truncated, aggregation, max_length, mismatch, mismatch_level, mismatch_cap
  c.update(common.sampled_settings())
  return c


def check(cfg: Any) -> None:
  """Refuses unknown names, and bounds on the wrong side of 1.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  common.check_sampled(cfg)
  common.check_at_least(cfg, 0, "clip_low", "clip_high")


def needs(cfg: Any) -> frozenset[str]:
  """Returns the teacher's pass, as that of the reference."""
  del cfg
  return frozenset({"ref"})


def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
  """Returns masks and weights; the advantages are made in the loss, from the live policy.

  Raises:
    SettingError: no teacher log-probs.
  """
  common.require(rollouts.ref_logprobs, "ref_logprobs (the teacher's)", cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  return common.train_batch(
    rollouts, jnp.zeros_like(mask), mask, weights(mask, rollouts.lengths, cfg)
  )


def live_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """Returns log(pi_teacher / pi) of each token, [P, G, L]."""
  return jax.lax.stop_gradient(common.on_mask(batch.ref_logprobs - logprobs, batch.mask))


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns minus the clipped surrogate with A = log(pi_teacher / pi), sum(weights * token loss),
  and its metrics.
  """
  logprobs, old, _ = common.policies(outputs, batch)
  batch = dataclasses.replace(batch, advantages=live_advantages(logprobs, batch))
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper) * common.mismatch(old, batch, cfg)
  found = metrics.of_policy(outputs, batch)
  found |= metrics.of_ratio(outputs, batch, cfg, importance_ratio, (lower, upper), gain)
  return -jnp.sum(batch.weights * gain), found
