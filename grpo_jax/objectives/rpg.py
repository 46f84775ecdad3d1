"""RPG (arXiv 2505.17508): the KL term carries the importance weight w = pi / pi_old, and w is differentiated too.

    J = clipped surrogate of GRPO - beta * D;    D of a sampled token, and what it adds to the coefficient:

    reverse               w log(pi / pi_ref)                             -beta w (log(pi / pi_ref) + 1)
    reverse_unnormalised  w (pi_ref / pi - log(pi_ref / pi) - 1) = w k3  -beta w log(pi / pi_ref)
    forward               -(pi_ref / pi_old) log pi                      beta pi_ref / pi_old
    forward_unnormalised  w - (pi_ref / pi_old) log pi                   beta (pi_ref / pi_old - w)

In expectation over tokens of pi_old the first two have the gradient of KL(pi || pi_ref), the last two that of
KL(pi_ref || pi), on- and off-policy: GRPO's k3, unweighted, has the second one's name and the fourth one's gradient,
and only on-policy. The "unnormalised" forms differ by a term whose expected gradient is 0 and which lowers the
variance. These are the paper's fully differentiable losses; its REINFORCE-style ones have the same gradient where
nothing is clipped. Everything before the loss is GRPO's.
"""

import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common, grpo
from grpo_jax.ops import divergences, surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch

prepare = grpo.prepare
importance_ratio = common.token_ratio
DATA = grpo.DATA
READS = grpo.READS - {"kl_weighted", "kl_in_reward", "kl_past_bound"}  # a KL in the reward has no importance weight

DIVERGENCES = ("reverse", "reverse_unnormalised", "forward", "forward_unnormalised")


def needs(cfg) -> frozenset[str]:
  """As GRPO's.

  Raises:
    SettingError: an unknown divergence.
  """
  if cfg.divergence not in DIVERGENCES:
    raise SettingError(f"divergence={cfg.divergence!r}: use one of {', '.join(DIVERGENCES)}")
  return grpo.needs(cfg)


def weighted_divergence(logprobs: Array, old: Array, ref: Array, divergence: str) -> Array:
  """One of the four D above, [P, G, L]."""
  weight = surrogate.token_ratio(logprobs, old)
  if divergence == "reverse":
    return weight * divergences.k1(logprobs, ref)
  if divergence == "reverse_unnormalised":
    return weight * divergences.k3(logprobs, ref)
  cross = -surrogate.token_ratio(ref, old) * logprobs
  return cross if divergence == "forward" else weight + cross


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """-J of a slice of the batch: sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta) * common.mismatch(old, batch, cfg)
  token_loss = -gain
  if cfg.beta:
    ref = common.require(ref, "ref_logprobs", cfg.name)
    token_loss += cfg.beta * weighted_divergence(logprobs, old, ref, cfg.divergence)
  metrics = common.policy_metrics(outputs, batch)
  metrics |= common.ratio_metrics(outputs, batch, cfg, importance_ratio, gain, cfg.clip_delta)
  return jnp.sum(batch.weights * token_loss), metrics
