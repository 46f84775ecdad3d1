"""RPG (arXiv 2505.17508): the KL has the importance weight w = pi / pi_old, also differentiated.

    J = clipped surrogate of GRPO - beta * D

    divergence            D of a sampled token          its part of the coefficient
    reverse               w log(pi / pi_ref)            -beta w (log(pi / pi_ref) + 1)
    reverse_unnormalised  w k3(pi, pi_ref)              -beta w log(pi / pi_ref)
    forward               -(pi_ref / pi_old) log pi     beta pi_ref / pi_old
    forward_unnormalised  w - (pi_ref / pi_old) log pi  beta (pi_ref / pi_old - w)

In expectation over tokens of pi_old the first two have the gradient of KL(pi || pi_ref), the last
two that of KL(pi_ref || pi), on- and off-policy. (GRPO's k3, which is unweighted, is the estimate
of the second and has the gradient of the fourth, on-policy only.) The "unnormalised" forms differ
by a term whose expected gradient is 0 and which lowers the variance. These are the paper's fully
differentiable losses; its REINFORCE-style ones have the same gradient where nothing is clipped. The
advantages are GRPO's.
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Needs, Objective
from grpo_jax.ops import divergences, surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch

DIVERGENCES = ("reverse", "reverse_unnormalised", "forward", "forward_unnormalised")


def settings() -> ConfigDict:
  """Returns the settings of RPG; a KL in the reward, or without the weight, is GRPO's."""
  c = shared_settings.join(shared_settings.advantage(), shared_settings.clipped())
  # reverse, KL(pi || pi_ref), or forward, KL(pi_ref || pi); reverse_unnormalised and
  # forward_unnormalised vary less and have the same expected gradient
  c.divergence = "reverse_unnormalised"
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names, and a negative beta."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "beta")
  shared_settings.check_choice(cfg, "divergence", DIVERGENCES)


def needs(cfg: ConfigDict) -> Needs:
  """Returns the reference, where there is a divergence from it."""
  return Needs.REFERENCE if cfg.beta else Needs.NOTHING


def weighted_divergence(logprobs: Array, old: Array, ref: Array, divergence: str) -> Array:
  """Returns one of the four D above for each token, [P, G, L]."""
  weight = surrogate.token_ratio(logprobs, old)
  if divergence == "reverse":
    return weight * divergences.k1(logprobs, ref)
  if divergence == "reverse_unnormalised":
    return divergences.weighted_k3(weight, logprobs, ref)
  cross = -surrogate.token_ratio(ref, old) * logprobs
  return cross if divergence == "forward" else weight + cross


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.clip_bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta) * common.mismatch(
    logprobs, old, batch, cfg
  )
  token_loss = -gain
  if cfg.beta:
    ref = common.require(ref, "ref_logprobs", cfg.name)
    token_loss += cfg.beta * weighted_divergence(logprobs, old, ref, cfg.divergence)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(
    outputs, batch, cfg, common.token_ratio, (lower, upper), gain, cfg.clip_delta
  )
  return jnp.sum(batch.weights * token_loss), reported


OBJECTIVE = Objective(
  loss,
  settings=settings,
  check=check,
  needs=needs,
  importance_ratio=common.token_ratio,
  bounds=common.clip_bounds,
)
