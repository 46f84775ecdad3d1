"""Estimates of KL(pi || pi_ref) from sampled tokens (Schulman, "Approximating KL divergence", 2020).

With d = log pi_ref - log pi on the sampled token and w = pi / pi_old:

    k1 = -d            k2 = d^2 / 2            k3 = expm1(d) - d

All three estimate the same number; as something to differentiate they differ. Expected gradient of one step
(proved by enumeration in tests/divergences_test.py; "on-policy" means that the tokens come from pi itself):

    in the loss    k1                      0 on-policy: no gradient at all
                   k2                      that of KL(pi || pi_ref), on-policy
                   k3                      the direction of KL(pi_ref || pi), on-policy: DeepSeekMath's eq. 21
                   w k1, w k3, sg(w) k2    that of KL(pi || pi_ref), on- and off-policy
                   w k2                    no KL's
                   sg(w) k3                the direction of KL(pi_ref || pi), on- and off-policy
    in the reward  k1                      that of KL(pi || pi_ref)
                   k2, k3                  no KL's

With w not detached, eq. 21's coefficient A + beta (pi_ref / pi - 1) becomes A - beta w log(pi / pi_ref).
Over a sequence a loss made of per-token terms misses what a token does to the tokens after it; k1 in the reward,
summed to the end without discount, has it.

d is not clamped from below: a reference that finds a token impossible (log pi_ref = -115) is meant. From above it
is cut at 20, where k3 is 5e8 already; beyond it k3 stands still in value and gradient. TRL cuts neither.
"""

import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.types import Array

MAX_LOG_RATIO = 20.0


def k1(logprobs: Array, ref_logprobs: Array) -> Array:
  """-d: unbiased, of either sign. Shapes [...]."""
  return logprobs - ref_logprobs


def k2(logprobs: Array, ref_logprobs: Array) -> Array:
  """d^2 / 2: biased, never negative. Shapes [...]."""
  return 0.5 * (ref_logprobs - logprobs) ** 2


def k3(logprobs: Array, ref_logprobs: Array) -> Array:
  """expm1(d) - d: unbiased, never negative. Shapes [...].

  Written exp(d) - d - 1 (as in TRL) it is negative for some of the tokens at |d| ~ 1e-4 in float32.
  """
  d = jnp.minimum(ref_logprobs - logprobs, MAX_LOG_RATIO)
  return jnp.expm1(d) - d


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_estimate(logprobs: Array, ref_logprobs: Array, estimator: str) -> Array:
  """One of k1, k2, k3 by its name. Shapes [...].

  Raises:
    SettingError: an unknown estimator.
  """
  if estimator not in ESTIMATORS:
    raise SettingError(f"kl_estimator={estimator!r}: use one of {', '.join(ESTIMATORS)}")
  return ESTIMATORS[estimator](logprobs, ref_logprobs)
