"""CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is a weight, capped and detached, and no token
loses its gradient.

    J = sum over tokens of sg(min(rho, 1 + clip_high)) A log pi

The coefficient of grad log pi is min(rho, 1 + clip_high) A. The paper leaves the lower side open;
so does this file, which has no `clip_low`. Everything before the loss is GRPO's.

Differences from TRL 1.16: its cap is `epsilon_high` itself, so `clip_high` here is TRL's less one;
and it can take the sequence's ratio for the weight (importance_sampling_level="sequence"), where
this file always takes the token's.
"""

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, grpo, metrics
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch

DATA = grpo.DATA
TEACHER = ""
needs = grpo.needs
prepare = grpo.prepare
importance_ratio = common.token_ratio
weights = common.weights
live_advantages = common.prepared_advantages
flat = grpo.flat


def settings() -> ConfigDict:
  """Returns GRPO's settings that CISPO reads, with the paper's mean over all tokens of the batch."""
  c = grpo.settings()
  c.aggregation = "token_mean"
  c.clip_high = 0.2  # the ratio weighs at most 1 + clip_high
  for unread in ("clip_low", "clip_delta", "kl_past_bound"):  # no token is stopped
    del c[unread]
  return c


def check(cfg: Any) -> None:
  """Refuses what GRPO refuses, and a cap below 1.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  grpo.check_unclipped(cfg)
  common.check_at_least(cfg, 0, "clip_high")


def bounds(batch: TrainBatch, cfg: Any) -> tuple[float, float]:
  """Returns (0, the cap)."""
  del batch
  return 0.0, 1.0 + cfg.clip_high


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, cap = bounds(batch, cfg)
  mismatch = common.mismatch(old, batch, cfg)
  gain = surrogate.cispo(logprobs, ratio, batch.advantages, cap) * mismatch
  kl = grpo.kl_term(logprobs, old, ref, cfg)
  # log pi is there for its gradient; what the passes improve is the capped ratio times A.
  improved = jnp.minimum(ratio, cap) * batch.advantages * mismatch
  found = metrics.of_policy(outputs, batch)
  found |= metrics.of_ratio(outputs, batch, cfg, importance_ratio, (lower, cap), improved)
  return jnp.sum(batch.weights * (kl - gain)), found
