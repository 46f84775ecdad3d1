"""Estimates KL(pi || pi_ref) from sampled tokens (Schulman, "Approximating KL Divergence", 2020).

With d = log pi_ref - log pi on the sampled token and w = pi / pi_old:

    k1 = -d            k2 = d^2 / 2            k3 = expm1(d) - d

All three estimate the same number, but their gradients differ. The expected gradient of one step is
(proved by enumeration in tests/ops/divergences_test.py; "on-policy" means that the tokens come from
pi itself):

    in the loss    k1                      0 on-policy: no gradient at all
                   k2                      that of KL(pi || pi_ref), on-policy
                   k3                      the direction of KL(pi_ref || pi), on-policy: eq. 21
                   w k1, w k3, sg(w) k2    that of KL(pi || pi_ref), on- and off-policy
                   w k2                    no KL's
                   sg(w) k3                the direction of KL(pi_ref || pi), on- and off-policy
    in the reward  k1                      that of KL(pi || pi_ref)
                   k2, k3                  no KL's

Eq. 21 is DeepSeekMath's. With w not detached, its coefficient A + beta (pi_ref / pi - 1) becomes
A - beta w log(pi / pi_ref). A loss made of per-token terms leaves out how a token changes the KL of
the tokens after it; k1 in the reward, summed to the end of the completion without discount,
includes it.

d is not clamped from below, so that a token which the reference finds impossible (log pi_ref =
-115) counts as such. From above it is clamped to 20, where k3 is 5e8 already; beyond that k3 is
constant and has no gradient (`weighted_k3` keeps its own). TRL clamps neither.

Both arguments of every function have one shape, [...]; nothing is broadcast.
"""

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import shapes
from grpo_jax.types import Array

MAX_LOG_RATIO = 20.0


def k1(logprobs: Array, ref_logprobs: Array) -> Array:
  """Returns k1 = -d = log pi - log pi_ref, which is unbiased and of either sign. Shapes [...]."""
  shapes.assert_same(logprobs, ref_logprobs)
  return logprobs - ref_logprobs


def k2(logprobs: Array, ref_logprobs: Array) -> Array:
  """Returns k2 = d^2 / 2, which is biased and never negative. Shapes [...]."""
  shapes.assert_same(logprobs, ref_logprobs)
  return 0.5 * (ref_logprobs - logprobs) ** 2


def k3(logprobs: Array, ref_logprobs: Array) -> Array:
  """Returns k3 = expm1(d) - d, which is unbiased and never negative. Shapes [...].

  Written exp(d) - d - 1 (as in TRL) it is negative for some tokens at |d| ~ 1e-4 in float32.
  """
  shapes.assert_same(logprobs, ref_logprobs)
  d = jnp.minimum(ref_logprobs - logprobs, MAX_LOG_RATIO)
  return jnp.expm1(d) - d


def weighted_k3(weight: Array, logprobs: Array, ref_logprobs: Array) -> Array:
  """Returns w k3, with the gradient -w d by log pi. Shapes [...].

  That is the gradient of the product, w = pi / pi_old included. Differentiated as a product it is
  the difference of two terms of w exp(d), of which float32 keeps nothing at d = 20; and above that,
  where k3 is constant, w k3 would push pi away from a token that the reference likes.
  """
  kept = jax.lax.stop_gradient
  slope = kept(weight * k1(logprobs, ref_logprobs))
  return kept(weight * k3(logprobs, ref_logprobs)) + slope * (logprobs - kept(logprobs))


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_estimate(logprobs: Array, ref_logprobs: Array, estimator: str) -> Array:
  """Returns the estimate "k1", "k2" or "k3". Shapes [...]."""
  if estimator not in ESTIMATORS:
    raise SettingError(f"kl_estimator={estimator!r}: use one of {', '.join(ESTIMATORS)}")
  return ESTIMATORS[estimator](logprobs, ref_logprobs)
