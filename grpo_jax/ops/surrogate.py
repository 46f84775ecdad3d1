"""Computes importance ratios, and the surrogates that are maximised.

Shapes are [P, G, L] unless a docstring has others. Log-probs that are compared have one shape.
Ratios, advantages and bounds broadcast if their ranks are equal and every dimension is the same or
1, as in the [P, G, 1] of a ratio by sequence; each may also be a plain number.
"""

import jax
import jax.numpy as jnp

from grpo_jax.ops import masked, shapes
from grpo_jax.types import Array

MAX_LOG_RATIO = 20.0
MOVES = ("tv", "kl")  # how `within_move` measures a move
LEAST_PROBABILITY = 1e-8  # added to probabilities before their logarithm, as DPPO's authors do


def exp_clamped(log_ratio: Array) -> Array:
  """Returns exp of a log-ratio clamped to [-20, 20], which TRL does not clamp. Shapes [...]."""
  return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def token_ratio(logprobs: Array, old_logprobs: Array) -> Array:
  """Returns pi / pi_old of each token (PPO, arXiv 1707.06347, section 3). Shapes [...]."""
  shapes.assert_same(logprobs, old_logprobs)
  return exp_clamped(logprobs - old_logprobs)


def sequence_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
  """Returns (pi(o) / pi_old(o))^(1/|o|), [P, G, 1] (GSPO, arXiv 2507.18071, eq. 7)."""
  shapes.assert_same(logprobs, old_logprobs, mask)
  return exp_clamped(masked.masked_mean(logprobs - old_logprobs, mask, axis=-1, keepdims=True))


def sequence_token_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
  """Returns sg(s) * pi / sg(pi): GSPO-token, arXiv 2507.18071, eq. 14.

  Its value is the sequence's ratio s, its gradient that of the token.
  """
  ratio = jax.lax.stop_gradient(sequence_ratio(logprobs, old_logprobs, mask))
  return ratio * jnp.exp(logprobs - jax.lax.stop_gradient(logprobs))


def clipped(
  ratio: Array, advantages: Array, lower: Array | float, upper: Array | float, delta: float = 0.0
) -> Array:
  """Returns min(rho A, clip(rho, lower, upper) A): PPO, arXiv 1707.06347, eq. 7.

  The minimum is taken of the products: factored as A min(rho, clip(rho)) it would not clip A < 0 at
  all. At a ratio exactly on its bound the gradient is split between the two branches, as
  jnp.minimum splits ties.

  Args:
    ratio: rho = pi / pi_old, [P, G, L] or [P, G, 1].
    advantages: [P, G, L].
    lower: 1 - eps_low, a number or a ratio for each token.
    upper: 1 + eps_high, likewise (a larger one is DAPO's clip-higher, arXiv 2503.14476).
    delta: two-sided clip (arXiv 2505.07291): where A < 0 the ratio counts for at most delta; 0
      turns it off.
  """
  shapes.assert_broadcast(ratio, advantages, lower, upper)
  bounded = jnp.clip(ratio, lower, upper)
  if delta:
    ratio = jnp.where(advantages < 0, jnp.minimum(ratio, delta), ratio)
  return jnp.minimum(ratio * advantages, bounded * advantages)


def cispo(logprobs: Array, ratio: Array, advantages: Array, cap: Array | float) -> Array:
  """Returns sg(min(rho, cap)) A log pi: CISPO of MiniMax-M1, arXiv 2506.13585."""
  shapes.assert_broadcast(logprobs, ratio, advantages, cap)
  return jax.lax.stop_gradient(jnp.minimum(ratio, cap)) * advantages * logprobs


def soft_gated(ratio: Array, advantages: Array, tau: Array) -> Array:
  """Returns (4 / tau) sigmoid(tau (rho - 1)) A, [P, G, L]: SAPO, arXiv 2511.20347.

  Its slope in rho is sech^2(tau (rho - 1) / 2) A, and its value at rho = 1 is 2 A / tau.
  """
  shapes.assert_broadcast(ratio, advantages, tau)
  return 4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantages


def geometric_ratio(
  logprobs: Array, old_logprobs: Array, mask: Array, advantages: Array, low: float, high: float
) -> Array:
  """Returns exp(mean over a completion of the clipped log rho), [P, G, 1]: GMPO, arXiv 2507.20673.

  log rho is at most `high` where A > 0 and at least `-low` where A < 0. Arrays are [P, G, L].
  """
  shapes.assert_same(logprobs, old_logprobs, mask, advantages)
  log_ratio = logprobs - old_logprobs
  log_ratio = jnp.where(advantages > 0, jnp.minimum(log_ratio, high), log_ratio)
  log_ratio = jnp.where(advantages < 0, jnp.maximum(log_ratio, -low), log_ratio)
  return exp_clamped(masked.masked_mean(log_ratio, mask, axis=-1, keepdims=True))


def smooth_weight(log_ratio: Array, mask: Array, k: Array, lam: Array) -> Array:
  """Returns e^lam W^k e^(-lam W), W = exp(sum of log_ratio), [P, G, L]: VESPO, arXiv 2602.10693.

  log W is clamped to [-20, 20]. Arrays are [P, G, L].
  """
  shapes.assert_same(log_ratio, mask, k, lam)
  log_w = masked.masked_sum(log_ratio, mask, axis=-1, keepdims=True)
  log_w = jnp.clip(log_w, -MAX_LOG_RATIO, MAX_LOG_RATIO)
  return jnp.exp(k * log_w + lam * (1.0 - jnp.exp(log_w)))


def within_move(
  logprobs: Array, sampler_logprobs: Array, advantages: Array, moved: str, bound: float
) -> Array:
  """Returns 1 on tokens that DPPO learns from, else 0, [P, G, L] (arXiv 2602.04879).

  It leaves out those that have moved by more than `bound` in the direction of their advantage: of
  "tv" the difference of the probabilities, of "kl" KL(mu || pi) of the token against all others.
  """
  shapes.assert_same(logprobs, sampler_logprobs, advantages)
  # at most 1: log-probs are rounded
  pi, mu = (jnp.exp(jnp.minimum(x, 0.0)) for x in (logprobs, sampler_logprobs))
  if moved == "tv":
    distance = jnp.abs(pi - mu)
  else:
    e = LEAST_PROBABILITY
    distance = mu * jnp.log((mu + e) / (pi + e))
    distance += (1.0 - mu) * jnp.log((1.0 - mu + e) / (1.0 - pi + e))
  onwards = ((advantages > 0) & (pi > mu)) | ((advantages < 0) & (pi < mu))
  return jax.lax.stop_gradient(1.0 - ((distance > bound) & onwards).astype(jnp.float32))


def beyond(
  ratio: Array, advantages: Array, lower: Array | float, upper: Array | float, delta: float = 0.0
) -> tuple[Array, Array, Array]:
  """Returns where `clipped` has no gradient, as three bool arrays; arguments as for `clipped`.

  They are: below `lower` with A < 0, above `upper` with A > 0, and above `delta` with A < 0
  (nowhere if delta is 0).
  """
  shapes.assert_broadcast(ratio, advantages, lower, upper)
  above_delta = (ratio > delta) & (advantages < 0) & bool(delta)
  return (ratio < lower) & (advantages < 0), (ratio > upper) & (advantages > 0), above_delta


def progress(
  ratio: Array,
  largest: Array,
  advantages: Array,
  lower: Array | float,
  upper: Array | float,
  tolerance: float = 1e-3,
) -> tuple[Array, Array, Array]:
  """Returns which tokens with A != 0 are short of their bound, at it, and beyond it, as bools.

  A ratio is at its bound when no more than a share of `tolerance` is left of the way from 1.

  Args:
    ratio: pi / pi_old.
    largest: the ratio of a policy that gives the token probability 1. A bound above it cannot be
      reached: such a token is at its bound once its ratio is `largest` up to `tolerance`.
    advantages: the bound is `upper` where they are positive, `lower` where they are negative.
    lower: the least ratio, a number or one for each token.
    upper: the largest ratio, likewise.
    tolerance: a share of the way, or of `largest`.
  """
  shapes.assert_broadcast(ratio, largest, advantages, lower, upper)
  certain = ratio >= largest * (1.0 - tolerance)
  up, down = advantages > 0, advantages < 0
  nearly, more = 1.0 - tolerance, 1.0 + tolerance
  beyond = (up & (ratio > _on_the_way(upper, more))) | (down & (ratio < _on_the_way(lower, more)))
  arrived = (up & ((ratio >= _on_the_way(upper, nearly)) | certain)) | (
    down & (ratio <= _on_the_way(lower, nearly))
  )
  return (up | down) & ~arrived, arrived & ~beyond, beyond


def _on_the_way(bound: Array | float, share: float) -> Array | float:
  """Returns the ratio that has gone this share of the way from 1 to `bound`."""
  return 1.0 + (bound - 1.0) * share
