"""SAPO (arXiv 2511.20347): a soft gate in the ratio takes the place of the clip.

    J = mean over completions of the mean over tokens of (4 / tau) sigmoid(tau (rho - 1)) A
    tau = tau_positive where A > 0, else tau_negative

The coefficient of grad log pi is sech^2(tau (rho - 1) / 2) rho A: A at rho = 1, and less the
further the ratio has moved either way. As tau goes to 0 nothing is gated: rho A. Everything before
the loss is GRPO's.
"""

import dataclasses

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, grpo, metrics, shared_settings
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that SAPO reads, and the paper's temperatures."""
  c = grpo.settings()
  c.tau_positive = 1.0  # how fast the gate closes where A > 0
  c.tau_negative = 1.05  # how fast the gate closes where A <= 0
  for unread in ("clip_low", "clip_high", "clip_delta", "kl_past_bound"):  # nothing is clipped
    del c[unread]
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and temperatures that gate nothing."""
  grpo.check(cfg)
  shared_settings.check_at_least(cfg, 1e-6, "tau_positive", "tau_negative")


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  tau = jnp.where(batch.advantages > 0, cfg.tau_positive, cfg.tau_negative)
  gain = surrogate.soft_gated(ratio, batch.advantages, tau)
  gain = gain * common.mismatch(logprobs, old, batch, cfg)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(outputs, batch, cfg, common.token_ratio, None, gain)
  kl = grpo.kl_term(logprobs, old, ref, cfg)
  bonus = common.entropy_bonus(outputs, batch, cfg)
  return jnp.sum(batch.weights * (kl - gain - bonus)), reported


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE, loss=loss, settings=settings, check=check, bounds=common.no_bounds
)
