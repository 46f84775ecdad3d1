"""Says how exactly a product of arrays of some dtype is computed.

Left to themselves a GPU rounds the factors of a float32 product to TF32 (10 bits of mantissa) and a
TPU rounds them to bfloat16 (7 bits): with `model.dtype="float32"` the log-probs of sampler and
learner then differ by about 1e-3. For that speed, use bfloat16.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def precision(dtype: DTypeLike) -> jax.lax.Precision | None:
  """Returns the precision of products whose factors have that dtype: float32 is kept."""
  return jax.lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None
