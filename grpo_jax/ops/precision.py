"""Says how exactly a product of arrays of some dtype is computed.

Left to themselves a GPU rounds the factors of a float32 product to TF32 (10 bits of mantissa) and a
TPU rounds them to bfloat16 (7 bits): with `model.dtype="float32"` the log-probs of sampler and
learner then differ by about 1e-3. For that speed, use bfloat16.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from grpo_jax.types import Array


def precision(dtype: DTypeLike) -> jax.lax.Precision | None:
  """Returns the precision of products whose factors have that dtype: float32 is kept."""
  return jax.lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None


def outer_sum(a: Array, b: Array, dtype: DTypeLike) -> Array:
  """Returns the sum over n of the outer products of a `[n, A]` and b `[n, B]`, `[A, B]`.

  The gradient of a weight is such a sum. It is made in float32, and returned in `dtype`.
  """
  if a.dtype != jnp.bfloat16:
    return _outer_sum(a, b, dtype)
  return jax.lax.platform_dependent(
    a,
    b,
    cpu=lambda a, b: _transposed_outer_sum(a, b).astype(dtype),
    default=functools.partial(_outer_sum, dtype=dtype),
  )


def _outer_sum(a: Array, b: Array, dtype: DTypeLike) -> Array:
  return jax.lax.dot_general(
    a,
    b,
    (((0,), (0,)), ((), ())),
    precision=precision(a.dtype),
    preferred_element_type=dtype,
  )


def _transposed_outer_sum(a: Array, b: Array) -> Array:
  """Returns `outer_sum` in float32, with a transposed beforehand.

  XLA's library of kernels for a CPU has no product that sums over the rows of both. XLA would
  convert them to float32, which takes twice as long.
  """
  # XLA would take a plain transposition into the product. The reshape and the barrier prevent it.
  a_T = jax.lax.optimization_barrier(a[None].transpose(2, 1, 0).reshape(a.shape[::-1]))
  return jax.lax.dot_general(a_T, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
