"""The parts of a layer."""

import jax
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


def test_products_in_bfloat16_are_sums_in_float32_rounded_once():
  rng = np.random.default_rng(0)
  # whole numbers, so that any sum below is exact in float32 and the rounding is all that is seen
  w, x, g = (
    jnp.asarray(rng.integers(-50, 51, shape), jnp.bfloat16)
    for shape in ((5, 300), (2, 3, 300), (2, 3, 5))
  )
  y, pull = jax.vjp(layers.linear, w, x)
  d_w, d_x = pull(g)
  wide_w, wide_x, wide_g = (np.asarray(a, np.float32) for a in (w, x, g))
  for found, wide in (
    (y, wide_x @ wide_w.T),
    (d_x, wide_g @ wide_w),
    (d_w, np.einsum("abo,abi->oi", wide_g, wide_x)),
  ):
    assert found.dtype == jnp.bfloat16 and abs(wide).max() > 256  # some are rounded
    np.testing.assert_array_equal(found, wide.astype(jnp.bfloat16))


def test_a_lookup_in_bfloat16_copies_no_table():
  table = jnp.arange(512 * 8, dtype=jnp.bfloat16).reshape(512, 8)
  tokens = jnp.array([[3, 511], [0, 3]])
  found = jax.jit(layers.lookup).lower(table, tokens).compile()
  assert "f32[512,8]" not in found.as_text()
  assert found(table, tokens).dtype == jnp.bfloat16
  np.testing.assert_array_equal(found(table, tokens), np.asarray(table)[np.asarray(tokens)])
