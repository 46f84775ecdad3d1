"""Prompts and rows in one list."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.packing import lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import completions_to_rows
from grpo_jax.types import Prompts


@pytest.mark.parametrize("sizes", [(3, 4), (None, None)])
def test_prompts_and_rows_are_joined_in_a_list_and_split_again(sizes):
  """Two prompts of 1 and 2 tokens, two rows of one token each."""
  prompts = Prompts(jnp.arange(8).reshape(2, 4) + 100, jnp.array([1, 2]))
  tokens, lengths = jnp.arange(16).reshape(2, 2, 4) + 1, jnp.array([[1, 1], [1, 1]])
  rows = completions_to_rows(tokens, lengths, Packing())
  both = lists.group_lists(prompts, rows, Packing(None, sizes[1], sizes[0]))
  joined = both.join(prompts.tokens, tokens)
  if sizes[0]:
    np.testing.assert_array_equal(joined, [100, 104, 105, 1, 5, 9, 13])
  else:
    assert joined.shape == (8 + 16,)
  of_prompts, of_rows = both.split(joined)
  assert of_prompts.shape == (2, 4) and of_rows.shape == (2, 2, 4)
  real = np.arange(4) < prompts.lengths[:, None]
  np.testing.assert_array_equal(of_prompts[real], prompts.tokens[real])
  np.testing.assert_array_equal(of_rows[..., 0], tokens[..., 0])


REAL = jnp.array([True, True, False, True, False, False, False, True, False, False])  # [M]


LISTED = lists.TokenList(lists.list_index(REAL, 5), (2, 5))


PADDED = lists.TokenList(None, (2, 5))


def test_the_list_holds_what_is_real_in_order():
  np.testing.assert_array_equal(LISTED.index.place_of_entry, [0, 1, 3, 7, 10])  # 10 = M: nothing
  # 5 = N: nothing
  np.testing.assert_array_equal(LISTED.index.entry_of_place, [0, 1, 5, 2, 5, 5, 5, 3, 5, 5])
  x = jnp.arange(1.0, 21.0).reshape(2, 5, 2)
  flat = LISTED.to_list(x)
  assert LISTED.size == flat.shape[0] == 5
  np.testing.assert_array_equal(flat[:, 0], [1, 3, 7, 15, 0])
  np.testing.assert_array_equal(LISTED.from_list(flat), jnp.where(REAL.reshape(2, 5, 1), x, 0))
  np.testing.assert_array_equal(PADDED.to_list(x), x.reshape(10, 2))
  np.testing.assert_array_equal(PADDED.from_list(x.reshape(10, 2)), x)
  assert PADDED.size == 10
  assert int(LISTED.count) == 4 and PADDED.count is None


def test_gradients_of_the_list_are_those_of_plain_indexing():
  rng, index = np.random.default_rng(0), LISTED.index
  x, weight = rng.normal(size=(2, 5, 2)), rng.normal(size=(5, 2))

  def plain(x):
    return x.reshape(10, 2).at[index.place_of_entry].get(mode="fill", fill_value=0)

  def plain_back(y):
    return jnp.where(REAL[:, None], y[index.entry_of_place], 0).reshape(2, 5, 2)

  def gradient(f, weight, x):
    return jax.grad(lambda x: (jnp.sin(f(x)) * weight).sum())(jnp.asarray(x))

  np.testing.assert_allclose(
    gradient(LISTED.to_list, weight, x), gradient(plain, weight, x), atol=1e-6
  )
  y = rng.normal(size=(5, 2))
  np.testing.assert_allclose(
    gradient(LISTED.from_list, x, y), gradient(plain_back, x, y), atol=1e-6
  )
