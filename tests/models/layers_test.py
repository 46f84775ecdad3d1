"""The parts of a layer."""

import jax.numpy as jnp
import numpy as np

from grpo_jax.models import layers


def test_a_norm_adds_one_in_float32():
  norm = layers.RMSNorm(2, eps=0.0, plus_one=True)
  norm.scale.set_value(jnp.full(2, 2.0**-9, jnp.bfloat16))  # 1 + 2^-9 is 1 in bfloat16
  np.testing.assert_allclose(norm(jnp.ones(2)), 1 + 2.0**-9, rtol=1e-7)


def test_products_of_few_and_of_many_rows_agree():
  rng = np.random.default_rng(0)
  w, x = (
    rng.normal(size=(5, 7)).astype(np.float32),
    rng.normal(size=(3, layers.FEW_ROWS, 7)).astype(np.float32),
  )
  np.testing.assert_allclose(layers.linear(w, x), x @ w.T, atol=1e-5)
  np.testing.assert_allclose(layers.linear(w, x[0]), x[0] @ w.T, atol=1e-5)
  assert layers.linear(w, jnp.asarray(x[0], jnp.bfloat16)).dtype == jnp.bfloat16
  assert layers.linear(w, jnp.asarray(x[0], jnp.bfloat16), jnp.float32).dtype == jnp.float32
