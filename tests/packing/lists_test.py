"""Prompts and rows in one list."""

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
