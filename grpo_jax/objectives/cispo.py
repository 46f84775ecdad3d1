"""CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is a capped, detached weight of log pi.

    J = sum over tokens of sg(min(rho, 1 + clip_high)) A log pi

The coefficient of grad log pi is min(rho, 1 + clip_high) A, so no token loses its gradient. As in
the paper the lower side is open: there is no `clip_low`. Everything before the loss is GRPO's.

Differences from TRL 1.16: its cap is `epsilon_high` itself, so `clip_high` here is TRL's less one;
and it can take the sequence's ratio for the weight (importance_sampling_level="sequence"), where
this file always takes the token's.
"""

import dataclasses

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, grpo, metrics, shared_settings
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that CISPO reads, with a mean over all tokens, as in TRL.

  The paper's is over the tokens of a group: aggregation="group_token_mean".
  """
  c = grpo.settings()
  c.aggregation = "token_mean"
  c.clip_high = 0.2  # the ratio weighs at most 1 + clip_high
  for unread in ("clip_low", "clip_delta", "kl_past_bound"):  # no token is stopped
    del c[unread]
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and a cap below 1."""
  grpo.check(cfg)
  shared_settings.check_at_least(cfg, 0, "clip_high")


def bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (0, the cap)."""
  del batch
  return 0.0, 1.0 + cfg.clip_high


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  lower, cap = bounds(batch, cfg)
  mismatch = common.mismatch(logprobs, old, batch, cfg)
  gain = surrogate.cispo(logprobs, ratio, batch.advantages, cap) * mismatch
  kl = grpo.kl_term(logprobs, old, ref, cfg)
  # log pi is there for its gradient; what the passes improve is the capped ratio times A.
  improved = jnp.minimum(ratio, cap) * batch.advantages * mismatch
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(outputs, batch, cfg, common.token_ratio, (lower, cap), improved)
  bonus = common.entropy_bonus(outputs, batch, cfg)
  return jnp.sum(batch.weights * (kl - gain - bonus)), reported


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE, loss=loss, settings=settings, check=check, bounds=bounds
)
