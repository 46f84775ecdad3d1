"""Completions in rows."""

import jax.numpy as jnp
import numpy as np

from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import completions_to_rows, rows_to_completions

LENGTHS = np.array([[3, 1, 2], [0, 4, 1]])


TOKENS = np.arange(2 * 3 * 4).reshape(2, 3, 4) + 1


# Places of G * L = 12 tokens in two rows of four.
TAKE = np.array([[[0, 1, 2, 4], [8, 9, -1, -1]], [[4, 5, 6, 7], [8, -1, -1, -1]]])


PACKED = Packing(jnp.asarray(TAKE))


def test_packed_rows():
  rows = completions_to_rows(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), PACKED)
  np.testing.assert_array_equal(rows.segments, np.where(TAKE < 0, -1, TAKE // 4))
  np.testing.assert_array_equal(
    rows.offsets, [[[0, 1, 2, 0], [0, 1, 0, 0]], [[0, 1, 2, 3], [0, 0, 0, 0]]]
  )
  at_tokens = TAKE >= 0
  want = np.stack([TOKENS[p].reshape(-1)[TAKE[p]] for p in range(2)])
  np.testing.assert_array_equal(np.asarray(rows.tokens)[at_tokens], want[at_tokens])


def test_unpacking_undoes_packing():
  rows = completions_to_rows(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), PACKED)
  back = rows_to_completions(rows.tokens, PACKED, 3, 4)
  mask = np.arange(4) < LENGTHS[..., None]
  np.testing.assert_array_equal(back, np.where(mask, TOKENS, 0))


def test_without_packing_a_row_holds_one_completion():
  rows = completions_to_rows(jnp.asarray(TOKENS), jnp.asarray(LENGTHS), Packing())
  np.testing.assert_array_equal(rows.tokens, TOKENS)
  np.testing.assert_array_equal(rows.segments, np.where(np.arange(4) < LENGTHS[..., None], 0, -1))
  np.testing.assert_array_equal(rows.offsets[1, 2], np.arange(4))
  np.testing.assert_array_equal(rows_to_completions(rows.tokens, Packing(), 3, 4), TOKENS)
