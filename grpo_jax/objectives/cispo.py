"""CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is a weight, capped and detached, and no token loses its gradient.

    J = sum over tokens of sg(min(rho, 1 + clip_high)) A log pi

The coefficient of grad log pi is min(rho, 1 + clip_high) A. The paper leaves the lower side open; so does this file.
TRL's cap is `epsilon_high` itself, so `clip_high` here is TRL's less one. Everything before the loss is GRPO's.
"""

import dataclasses

import jax.numpy as jnp

from grpo_jax.objectives import common, grpo
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

needs = grpo.needs
importance_ratio = common.token_ratio
DATA = grpo.DATA
READS = grpo.READS - {"clip_delta", "kl_past_bound"}


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """GRPO's, with the cap alone for a bound."""
  batch = grpo.prepare(rollouts, cfg)
  bounds = {"lower": jnp.zeros_like(batch.mask), "upper": jnp.full_like(batch.mask, 1.0 + cfg.clip_high)}
  return dataclasses.replace(batch, extra=batch.extra | bounds)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """-J of a slice of the batch: sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  _, cap = common.bounds(batch, cfg)
  mismatch = common.mismatch(old, batch, cfg)
  gain = surrogate.cispo(logprobs, ratio, batch.advantages, cap) * mismatch
  kl = grpo.kl_term(logprobs, old, ref, cfg, jnp.zeros_like(ratio, bool))
  # log pi is there for its gradient; what the passes improve is the capped ratio times A.
  metrics = common.policy_metrics(outputs, batch)
  metrics |= common.ratio_metrics(
    outputs, batch, cfg, importance_ratio, jnp.minimum(ratio, cap) * batch.advantages * mismatch
  )
  return jnp.sum(batch.weights * (kl - gain)), metrics
