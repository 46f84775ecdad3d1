"""GKD (arXiv 2306.13649): how far the student's distribution is from the teacher's at each token.

    J = - sum(weights * D(teacher, student))     D: see ops/distillation.py

`distill` moves each sampled token by log(pi_teacher / pi): its expectation is the reverse KL here.
The whole distribution has no such noise, and costs the teacher's logits besides. As in GKD, the
sampled tokens are treated as constants.

On the student's own samples it is on-policy distillation; on a teacher's samples or on worked
solutions it is that of Hinton et al. (arXiv 1503.02531) with `divergence = "forward"`. With several
updates on a rollout, `ratio_cap` weighs a token by min(pi / pi_old, cap), as SDPO does.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective, needs_teacher
from grpo_jax.ops import surrogate
from grpo_jax.ops.distillation import Divergence
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of GKD."""
  c = shared_settings.sampled()
  # jensen_shannon, forward (KL(teacher || student)) or reverse (KL(student || teacher))
  c.divergence = "jensen_shannon"
  c.jensen_shannon_beta = 0.5  # the teacher's share of the mixture, above 0 and below 1
  # the likeliest tokens that are compared one by one; the others are one outcome; 0: all are
  c.top_k = 0
  c.top_k_of = "student"  # whose likeliest tokens: of the student or the teacher
  c.ratio_cap = 0.0  # the largest weight pi / pi_old of a token; 0: all tokens weigh 1
  return c


def divergence(cfg: ConfigDict) -> Divergence:
  """Returns what the settings compare."""
  return Divergence(cfg.divergence, cfg.jensen_shannon_beta, cfg.top_k, cfg.top_k_of)


def check(cfg: ConfigDict) -> None:
  """Refuses bad values, and a share of a mixture that is not made."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "ratio_cap")
  shared_settings.check_keep_condition(cfg, "always")
  divergence(cfg)
  beta, default = cfg.jensen_shannon_beta, settings().jensen_shannon_beta
  if cfg.divergence != "jensen_shannon" and beta != default:
    raise SettingError(
      f"jensen_shannon_beta={beta!r} with divergence={cfg.divergence!r}: only jensen_shannon mixes "
      f"the two; use {default!r}, or divergence='jensen_shannon'"
    )


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns masks and weights; there are no advantages."""
  del advantages
  common.require(rollouts.ref_hidden, "ref_hidden (the teacher's)", cfg.name)
  return common.taught_batch(rollouts, cfg)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns the weighted divergence of all tokens, and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  apart = common.require(outputs.divergence, "outputs.divergence", cfg.name)
  apart = common.on_mask(apart, batch.mask)
  weight = common.mismatch(logprobs, old, batch, cfg)
  if cfg.ratio_cap:
    ratio = surrogate.token_ratio(jax.lax.stop_gradient(logprobs), old)
    weight *= jnp.minimum(ratio, cfg.ratio_cap)
  reported = metrics.policy_metrics(outputs, batch) | metrics.kept(logprobs, old, batch, cfg)
  reported["divergence"] = metrics.token_mean(jax.lax.stop_gradient(apart), batch.mask)
  return jnp.sum(batch.weights * weight * apart), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs=needs_teacher,
  divergence=divergence,
  data=("live", "samples", "solutions"),
  teacher="ref_from",
  flat=common.flat_never,
)
