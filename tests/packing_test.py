"""Completions in rows and in one list: by hand, there and back, with the gradient of what JAX would make of it."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import packing
from grpo_jax.types import Packing

LENGTHS = np.array([[3, 1, 2], [0, 4, 1]])
TOKENS = np.arange(2 * 3 * 4).reshape(2, 3, 4) + 1
# Places of G * L = 12 tokens in two rows of four.
TAKE = np.array([[[0, 1, 2, 4], [8, 9, -1, -1]], [[4, 5, 6, 7], [8, -1, -1, -1]]])
PACKED = Packing(jnp.asarray(TAKE))


def test_packed_rows():
  rows = packing.lay(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), PACKED)
  np.testing.assert_array_equal(rows.segments, np.where(TAKE < 0, -1, TAKE // 4))
  np.testing.assert_array_equal(rows.offsets, [[[0, 1, 2, 0], [0, 1, 0, 0]], [[0, 1, 2, 3], [0, 0, 0, 0]]])
  at_tokens = TAKE >= 0
  want = np.stack([TOKENS[p].reshape(-1)[TAKE[p]] for p in range(2)])
  np.testing.assert_array_equal(np.asarray(rows.tokens)[at_tokens], want[at_tokens])


def test_unpacking_undoes_packing():
  rows = packing.lay(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), PACKED)
  back = packing.unlay(rows.tokens, PACKED, 3, 4)
  mask = np.arange(4) < LENGTHS[..., None]
  np.testing.assert_array_equal(back, np.where(mask, TOKENS, 0))


def test_without_packing_a_row_holds_one_completion():
  rows = packing.lay(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), Packing())
  np.testing.assert_array_equal(rows.tokens, TOKENS)
  np.testing.assert_array_equal(rows.segments, np.where(np.arange(4) < LENGTHS[..., None], 0, -1))
  np.testing.assert_array_equal(rows.offsets[1, 2], np.arange(4))
  np.testing.assert_array_equal(packing.unlay(rows.tokens, Packing(), 3, 4), TOKENS)


REAL = jnp.array([[[True, True, False, True, False]], [[False, False, True, False, False]]])  # [A, B, M]


def test_the_list_holds_what_is_real_in_order():
  at = packing.places(REAL, 4)
  np.testing.assert_array_equal(at.there, [[[0, 1, 3, 5]], [[2, 5, 5, 5]]])  # 5 = M: nothing
  np.testing.assert_array_equal(at.back, [[[0, 1, 4, 2, 4]], [[4, 4, 0, 4, 4]]])  # 4 = N: nothing
  x = jnp.arange(1.0, 21.0).reshape(2, 1, 5, 2)
  flat = packing.flatten(x, at)
  np.testing.assert_array_equal(flat[0, 0, :, 0], [1, 3, 7, 0])
  np.testing.assert_array_equal(flat[1, 0, :, 1], [16, 0, 0, 0])
  np.testing.assert_array_equal(packing.unflatten(flat, at), jnp.where(REAL[..., None], x, 0))
  assert packing.flatten(x, None) is x and packing.unflatten(x, None) is x


def test_gradients_of_the_list_are_those_of_plain_indexing():
  at = packing.places(REAL, 4)
  rng = np.random.default_rng(0)
  x, weight = rng.normal(size=(2, 1, 5, 2)), rng.normal(size=(2, 1, 4, 2))
  plain = lambda x: jnp.stack([x[a, :].at[0, at.there[a, 0]].get(mode="fill", fill_value=0)[None] for a in range(2)])
  loss = lambda f: jax.grad(lambda x: (jnp.sin(f(x)) * weight).sum())(jnp.asarray(x))
  np.testing.assert_allclose(loss(lambda x: packing.flatten(x, at)), loss(plain), atol=1e-6)
  back = lambda y: (jnp.sin(packing.unflatten(y, at)) * x).sum()
  plain_back = lambda y: (jnp.sin(jnp.where(REAL[..., None], y[jnp.arange(2)[:, None, None], 0, at.back], 0)) * x).sum()
  y = jnp.asarray(rng.normal(size=(2, 1, 4, 2)))
  np.testing.assert_allclose(jax.grad(back)(y), jax.grad(plain_back)(y), atol=1e-6)
