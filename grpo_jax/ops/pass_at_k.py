"""Computes advantages for pass@k, the chance that one of k answers is right, from groups of n.

c of the n completions of a group are right. Where a loss is the mean over completions of A log pi
of the whole completion, the expected update of `pkpo` is the gradient of pass@k itself, and that of
`maxrl` the sum of the gradients of pass@k / k for k = 1 to n - 1. The aggregation "constant" is
such a mean up to a factor; "sequence_mean" divides by the length of each completion.
"""

import chex
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.types import Array


def maxrl(rewards: Array, real: Array) -> Array:
  """Returns (r - mean) / mean of the group, 0 if the mean is 0: MaxRL, arXiv 2602.02710.

  For rewards of 0 and 1 that is 1 / p - 1 and -1, where p is the share of right answers. The paper
  has no negative rewards, which could bring the mean as near to 0 as one likes: they count as 0.

  Args:
    rewards: [P, G], of whole completions.
    real: [P, G] bool, false for completions that fill the batch or have no reward.

  Returns:
    [P, G], 0 where a completion is not real.
  """
  chex.assert_rank(rewards, 2)
  chex.assert_equal_shape((rewards, real))
  rewards = jnp.maximum(rewards, 0.0)
  mean = masked.masked_mean(rewards, real, axis=1, keepdims=True)
  relative = (rewards - mean) / jnp.where(mean > 0, mean, 1.0)
  return jnp.where(real & (mean > 0), relative, 0.0)


def pass_at_k(right: Array, real: Array, k: int) -> Array:
  """Returns the advantages of pass@k training, arXiv 2508.10751, section 2.3.

      R   = 1 - C(n-c, k) / C(n, k)         pass@k, estimated from the group
      s   = sqrt(R (1 - R))
      A   = (1 - R) / s                                    right
      A   = (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / s      wrong

  With k = 1 it is GRPO's with ddof = 0. They add up to 0 in a group, and are all 0 where no answer
  is right, where n - c < k, and in groups of less than k.

  Args:
    right: [P, G] bool.
    real: [P, G] bool, false for completions that fill the batch or have no reward.
    k: at least 1.

  Returns:
    [P, G], 0 where a completion is not real.
  """
  chex.assert_rank(right, 2)
  chex.assert_equal_shape((right, real))
  n, wrong = _counts(right, real)
  fail = _all_wrong(wrong, n, k)  # 1 - R
  s = jnp.sqrt(fail * (1.0 - fail))
  others_fail = _all_wrong(wrong - 1, n - 1, k - 1)
  advantages = jnp.where(right, fail, fail - others_fail) / jnp.where(s > 0, s, 1.0)
  return jnp.where(real & (s > 0) & (n >= k), advantages, 0.0)


def pkpo(right: Array, real: Array, k: int) -> Array:
  """Returns n times the rewards s^(loo-1) of PKPO, arXiv 2505.15201.

  In each set of k answers an answer gets the best reward of the set less the best of the others;
  the mean over the sets that it is in, times k, is

      k C(n-c, k-1) / C(n-1, k-1)      right
      0                                wrong

  With k = 1 that is 1 and 0. The paper's rewards without this baseline have the same expected
  update and more variance: k, and k (1 - C(n-1-c, k-1) / C(n-1, k-1)). Arguments and result as of
  `pass_at_k`; groups of less than k have 0.
  """
  chex.assert_rank(right, 2)
  chex.assert_equal_shape((right, real))
  n, wrong = _counts(right, real)
  rewards = k * jnp.where(right, _all_wrong(wrong, n - 1, k - 1), 0.0)
  return jnp.where(real & (n >= k), rewards, 0.0)


def _counts(right: Array, real: Array) -> tuple[Array, Array]:
  """Returns the number of completions and of wrong ones of each group, [P, 1] float32."""
  n = jnp.sum(real, axis=1, keepdims=True).astype(jnp.float32)
  return n, n - jnp.sum(right & real, axis=1, keepdims=True)


def _all_wrong(wrong: Array, n: Array, k: int) -> Array:
  """Returns C(wrong, k) / C(n, k): the chance that k of n answers, drawn at once, are all wrong."""
  chance = jnp.ones_like(n)
  for j in range(k):
    chance *= jnp.maximum(wrong - j, 0.0) / jnp.maximum(n - j, 1.0)
  return chance
