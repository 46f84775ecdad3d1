"""Importance ratios and the surrogates made of them, each to be maximised.

Shapes [P, G, L] unless said; a sequence's own number is [P, G, 1] and broadcasts.
"""

import chex
import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import masked
from grpo_jax.types import Array

MAX_LOG_RATIO = 20.0
MISMATCHES = ("none", "truncate", "mask")
MISMATCH_LEVELS = ("token", "sequence")


def exp_clamped(log_ratio: Array) -> Array:
  """exp, of a log-ratio cut to [-20, 20] so that one wild token is not an infinity (TRL does not cut)."""
  return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def token_ratio(logprobs: Array, old_logprobs: Array) -> Array:
  """pi / pi_old of each token (PPO, arXiv 1707.06347)."""
  return exp_clamped(logprobs - old_logprobs)


def sequence_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
  """(pi(o) / pi_old(o))^(1/|o|), [P, G, 1] (GSPO, arXiv 2507.18071, eq. 7)."""
  return exp_clamped(masked.masked_mean(logprobs - old_logprobs, mask, axis=-1, keepdims=True))


def sequence_token_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
  """sg(s) * pi / sg(pi): the sequence's ratio in value, a token's own gradient (GSPO-token, eq. 14)."""
  ratio = jax.lax.stop_gradient(sequence_ratio(logprobs, old_logprobs, mask))
  return ratio * jnp.exp(logprobs - jax.lax.stop_gradient(logprobs))


def clipped(ratio: Array, advantages: Array, lower: Array | float, upper: Array | float, delta: float = 0.0) -> Array:
  """min(rho A, clip(rho, lower, upper) A), the bounds given as ratios, each a number or one a token.

  The minimum is taken of the products: factored as A min(rho, clip(rho)) it would not clip A < 0 at all.
  At a ratio exactly on its bound the gradient is split between the two branches, as jnp.minimum splits ties.

  Args:
    ratio: pi / pi_old, [P, G, L] or [P, G, 1].
    advantages: [P, G, L].
    lower: 1 - eps_low.
    upper: 1 + eps_high (a larger one is DAPO's clip-higher).
    delta: two-sided clip (arXiv 2505.07291): where A < 0 the ratio counts for at most delta; 0 turns it off.
  """
  bounded = jnp.clip(ratio, lower, upper)
  if delta:
    ratio = jnp.where(advantages < 0, jnp.minimum(ratio, delta), ratio)
  return jnp.minimum(ratio * advantages, bounded * advantages)


def cispo(logprobs: Array, ratio: Array, advantages: Array, cap: Array | float) -> Array:
  """sg(min(rho, cap)) A log pi (MiniMax-M1, arXiv 2506.13585): every token keeps a gradient."""
  return jax.lax.stop_gradient(jnp.minimum(ratio, cap)) * advantages * logprobs


def beyond(
  ratio: Array, advantages: Array, lower: Array | float, upper: Array | float, delta: float = 0.0
) -> tuple[Array, Array]:
  """Where `clipped` has no gradient: (below `lower` or above `delta` with A < 0, above `upper` with A > 0), bool."""
  outside = (ratio < lower) | (ratio > delta) if delta else ratio < lower
  return outside & (advantages < 0), (ratio > upper) & (advantages > 0)


def progress(
  ratio: Array,
  largest: Array,
  advantages: Array,
  lower: Array | float,
  upper: Array | float,
  tolerance: float = 1e-3,
) -> tuple[Array, Array, Array]:
  """Where each token with A != 0 stands: (short of its bound, at it, beyond it), bool [P, G, L].

  `largest` is the ratio of a policy that is certain of what was sampled. A bound above it cannot be reached: such a
  token counts as at its bound once its ratio is `largest` but for a share of `tolerance`. A ratio is at its bound when
  it has come all of the way from 1 but for a share of `tolerance`.
  """
  certain = ratio >= largest * (1.0 - tolerance)
  up, down = advantages > 0, advantages < 0
  way = lambda bound, share: 1.0 + (bound - 1.0) * share
  beyond = (up & (ratio > way(upper, 1.0 + tolerance))) | (down & (ratio < way(lower, 1.0 + tolerance)))
  come = (up & ((ratio >= way(upper, 1.0 - tolerance)) | certain)) | (down & (ratio <= way(lower, 1.0 - tolerance)))
  return (up | down) & ~come, come & ~beyond, beyond


def mismatch_weight(
  old_logprobs: Array, sampler_logprobs: Array, mask: Array, kind: str, level: str, cap: float
) -> Array:
  """Weight pi_learner_old / pi_sampler of each token, no gradient: [P, G, L] or, by sequence, [P, G, 1].

  The learner's old policy and the sampler hold the same parameters; their numbers differ by dtype and program.

  Args:
    old_logprobs: [P, G, L], of the learner's forward pass.
    sampler_logprobs: [P, G, L], as the sampler reported them.
    mask: [P, G, L].
    kind: "none" (1 everywhere), "truncate" (min(w, cap)) or "mask" (0 where w > cap).
    level: "token", or "sequence" (the product over its tokens).
    cap: the largest weight.

  Raises:
    SettingError: an unknown kind or level.
  """
  chex.assert_equal_shape((old_logprobs, sampler_logprobs, mask))
  if kind not in MISMATCHES:
    raise SettingError(f"mismatch={kind!r}: use one of {', '.join(MISMATCHES)}")
  if level not in MISMATCH_LEVELS:
    raise SettingError(f"mismatch_level={level!r}: use one of {', '.join(MISMATCH_LEVELS)}")
  log_weight = jnp.where(mask > 0, old_logprobs - sampler_logprobs, 0.0)
  if level == "sequence":
    log_weight = jnp.sum(log_weight, axis=-1, keepdims=True)
  weight = jax.lax.stop_gradient(exp_clamped(log_weight))
  if kind == "none":
    return jnp.ones_like(weight)
  if kind == "truncate":
    return jnp.minimum(weight, cap)
  return jnp.where(weight <= cap, weight, 0.0)
