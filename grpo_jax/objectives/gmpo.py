"""GMPO (arXiv 2507.20673): a completion's ratio is the geometric mean of its clipped token ratios.

    c_t = min(log rho_t, clip_high) where A > 0, else max(log rho_t, -clip_low)
    J   = mean over completions of exp(mean of c_t) A

The coefficient of grad log pi is exp(mean of c_t) A on the tokens that are not clipped, with the
weights of a mean over completions. The bounds are of log rho; the paper's are 0.4. Where nothing is
clipped it is GSPO without a clip, and on completions of one token GRPO with bounds e^-0.4 and
e^0.4. All tokens of a completion should have one advantage; weights of tokens (mismatch=token)
count by their mean. Everything before the loss is GRPO's.
"""

import dataclasses
import math

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, grpo, metrics, shared_settings
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that GMPO reads, with the paper's bounds."""
  c = grpo.settings()
  c.clip_low = 0.4  # log rho is bounded by -clip_low where A < 0
  c.clip_high = 0.4  # log rho is bounded by clip_high where A > 0
  # one A for all tokens
  for unread in ("clip_delta", "kl_past_bound", "kl_in_reward", "top_entropy"):
    del c[unread]
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and to treat tokens apart, since all share one ratio."""
  grpo.check(cfg)
  shared_settings.check_one_ratio(cfg)


def bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (e^-clip_low, e^clip_high), of the ratio of a token."""
  del batch
  return math.exp(-cfg.clip_low), math.exp(cfg.clip_high)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = surrogate.geometric_ratio(
    logprobs, old, batch.mask, batch.advantages, cfg.clip_low, cfg.clip_high
  )
  gain = ratio * batch.advantages * common.mismatch(logprobs, old, batch, cfg)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(
    outputs, batch, cfg, common.token_ratio, bounds(batch, cfg), gain
  )
  kl = grpo.kl_term(logprobs, old, ref, cfg)
  bonus = common.entropy_bonus(outputs, batch, cfg)
  return jnp.sum(batch.weights * (kl - gain - bonus)), reported


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE, loss=loss, settings=settings, check=check, bounds=bounds
)
