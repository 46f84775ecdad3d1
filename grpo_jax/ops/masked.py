"""Computes masked sums and means, and the weights that turn token losses into one number.

Every denominator here is global: the arrays are whole batches (sharded or not), so a sum over P is
a sum over every device. A loss then only multiplies by the weights and adds up, and its gradient
does not depend on the microbatches.

A mask has the rank of the array that it masks, and each of its dimensions is the same or 1.
"""

import chex
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import shapes
from grpo_jax.types import Array

Axis = int | tuple[int, ...] | None

AGGREGATIONS = ("sequence_mean", "token_mean", "group_token_mean", "constant", "prompt_sum")


def masked_sum(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
  """Returns the sum of `x * mask`; where the mask is 0, `x` may be NaN."""
  shapes.assert_broadcast(x, mask)
  return jnp.sum(jnp.where(mask > 0, x * mask, 0.0), axis=axis, keepdims=keepdims)


def masked_mean(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
  """Returns the mean of `x` weighted by `mask`; 0 where the mask keeps nothing."""
  shapes.assert_broadcast(x, mask)
  mask = jnp.broadcast_to(mask, jnp.broadcast_shapes(x.shape, mask.shape)).astype(jnp.float32)
  count = jnp.sum(mask, axis=axis, keepdims=keepdims)
  return masked_sum(x, mask, axis, keepdims) / jnp.maximum(count, 1.0)


def masked_std(
  x: Array, mask: Array, axis: Axis = None, ddof: int = 1, keepdims: bool = False
) -> Array:
  """Returns sqrt(sum (x - mean)^2 / (n - ddof)) where the mask is nonzero; 0 if n <= ddof."""
  shapes.assert_broadcast(x, mask)
  mask = jnp.broadcast_to(mask, x.shape).astype(jnp.float32)
  centred = x - masked_mean(x, mask, axis, keepdims=True)
  count = jnp.sum(mask, axis=axis, keepdims=keepdims)
  total = masked_sum(centred**2, mask, axis, keepdims)
  return jnp.where(count > ddof, jnp.sqrt(total / jnp.maximum(count - ddof, 1.0)), 0.0)


def whiten(x: Array, mask: Array, eps: float = 1e-8) -> Array:
  """Returns (x - mean) / (std + eps) where the mask is nonzero, and 0 elsewhere.

  If all are equal the result is 0, because their standard deviation would be that of rounding.
  """
  shapes.assert_same(x, mask)
  mean, std = masked_mean(x, mask), masked_std(x, mask)
  varies = jnp.max(jnp.where(mask > 0, x, -jnp.inf)) > jnp.min(jnp.where(mask > 0, x, jnp.inf))
  return jnp.where((mask > 0) & varies, (x - mean) / (std + eps), 0.0)


def length_mask(lengths: Array, max_length: int) -> Array:
  """Returns [..., L] float32, 1 on the first `lengths` tokens."""
  return (jnp.arange(max_length) < lengths[..., None]).astype(jnp.float32)


def largest(x: Array, mask: Array, share: float) -> Array:
  """Returns 1 where `x` is among the largest `share` of those on the mask, and 0 elsewhere.

  At least one of them, rounded up, and all that are equal to the least of them. x, mask: [...].
  """
  shapes.assert_same(x, mask)
  ordered = jnp.sort(jnp.where(mask > 0, x, -jnp.inf).ravel(), descending=True)
  # Less than a float32 can tell: 0.002 of 1,500 would be above 3, and rounded up to 4.
  count = jnp.ceil(share * (1 - 2.5e-7) * jnp.sum(mask > 0)).astype(jnp.int32)
  least = ordered[jnp.clip(count - 1, 0, x.size - 1)]
  return ((mask > 0) & (x >= least)).astype(jnp.float32)


def token_weights(
  mask: Array, lengths: Array, aggregation: str, max_length: int | None = None
) -> Array:
  """Returns weights [P, G, L] such that a batch's loss is sum(weights * token_loss).

  sequence_mean     m / (|o| N)              GRPO: mean over completions of the mean over tokens
  token_mean        m / sum of m             over the whole update's batch
  group_token_mean  m / (tokens of its group * number of groups)      DAPO, arXiv 2503.14476, eq. 8
  constant          m / (N * max_length)     Dr.GRPO, arXiv 2503.20783
  prompt_sum        m / number of groups     no 1/G, no 1/|o|: "how much, not how fast"

  N counts the completions that are real (length > 0). A group counts if it has such a completion:
  in a file of labelled steps the others may only fill it.

  Args:
    mask: [P, G, L] float, the tokens that are trained. A truncated completion that is left out is
      all 0 and still one of the N, as in TRL.
    lengths: [P, G] int, 0 where a completion only fills the batch.
    aggregation: one of the names above.
    max_length: the longest allowed completion; read by "constant" only.
  """
  chex.assert_rank(mask, 3)
  chex.assert_shape(lengths, mask.shape[:2])
  real = lengths > 0
  sequences = jnp.maximum(jnp.sum(real).astype(jnp.float32), 1.0)
  groups = jnp.maximum(jnp.sum(jnp.any(real, axis=1)).astype(jnp.float32), 1.0)
  if aggregation == "sequence_mean":
    return mask / (jnp.maximum(jnp.sum(mask, axis=2, keepdims=True), 1.0) * sequences)
  if aggregation == "token_mean":
    return mask / jnp.maximum(jnp.sum(mask), 1.0)
  if aggregation == "group_token_mean":
    return mask / (jnp.maximum(jnp.sum(mask, axis=(1, 2), keepdims=True), 1.0) * groups)
  if aggregation == "constant":
    assert max_length is not None, "aggregation='constant' divides by max_length"
    return mask / (sequences * max_length)
  if aggregation == "prompt_sum":
    return mask / groups
  raise SettingError(f"aggregation={aggregation!r}: use one of {', '.join(AGGREGATIONS)}")
