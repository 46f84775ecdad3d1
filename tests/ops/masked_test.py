"""Masked statistics and aggregations against numbers worked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.ops import masked

X = jnp.array([1.0, 2.0, 6.0, jnp.nan])
M = jnp.array([1.0, 1.0, 1.0, 0.0])


def test_statistics_leave_out_what_the_mask_hides():
  assert masked.masked_sum(X, M) == 9.0
  assert masked.masked_mean(X, M) == 3.0
  np.testing.assert_allclose(masked.masked_std(X, M), np.std([1, 2, 6], ddof=1), rtol=1e-6)
  np.testing.assert_allclose(masked.masked_std(X, M, ddof=0), np.std([1, 2, 6]), rtol=1e-6)


def test_empty_masks_give_zero():
  none = jnp.zeros(4)
  assert masked.masked_mean(X, none) == 0.0
  assert masked.masked_std(X, none) == 0.0
  assert masked.masked_std(X, jnp.array([1.0, 0, 0, 0])) == 0.0


def test_whiten_leaves_nothing_of_equal_numbers():
  """The mean of 37 times 0.7 is not 0.7 in float32, and their standard deviation is not 0."""
  x = jnp.full(40, 0.7).at[37:].set(jnp.nan)
  m = (jnp.arange(40) < 37) * 1.0
  assert masked.masked_std(x, m) > 0
  np.testing.assert_array_equal(masked.whiten(x, m), 0.0)
  np.testing.assert_array_equal(masked.whiten(x, jnp.zeros(40)), 0.0)


def test_whiten():
  w = masked.whiten(X, M)
  assert w[3] == 0.0
  np.testing.assert_allclose(np.mean(w[:3]), 0.0, atol=1e-6)
  np.testing.assert_allclose(np.std(w[:3], ddof=1), 1.0, rtol=1e-6)


def test_length_mask():
  np.testing.assert_array_equal(
    masked.length_mask(jnp.array([[0, 2], [3, 1]]), 3)[0], [[0, 0, 0], [1, 1, 0]]
  )


# Two prompts, two completions each, of lengths 1, 3 and 2, 0 (the last one masked out, but real).
LENGTHS = jnp.array([[1, 3], [2, 0]])
MASK = masked.length_mask(LENGTHS, 3)
REAL = jnp.maximum(LENGTHS, 1)


@pytest.mark.parametrize(
  "aggregation, expected",
  [
    ("sequence_mean", [[1 / 4, 1 / 12], [1 / 8, 0]]),
    ("token_mean", [[1 / 6, 1 / 6], [1 / 6, 0]]),
    ("group_token_mean", [[1 / 8, 1 / 8], [1 / 4, 0]]),
    ("constant", [[1 / 20, 1 / 20], [1 / 20, 0]]),
    ("prompt_sum", [[1 / 2, 1 / 2], [1 / 2, 0]]),
  ],
)
def test_token_weights(aggregation, expected):
  weights = masked.token_weights(MASK, REAL, aggregation, max_length=5)
  np.testing.assert_allclose(weights, np.array(expected)[..., None] * MASK, rtol=1e-6)


@pytest.mark.parametrize("aggregation", masked.AGGREGATIONS)
def test_rows_that_fill_the_batch_change_no_weight(aggregation):
  padded = jnp.concatenate([MASK, jnp.zeros((3, 2, 3))])
  lengths = jnp.concatenate([REAL, jnp.zeros((3, 2), int)])
  whole = masked.token_weights(padded, lengths, aggregation, 5)
  np.testing.assert_array_equal(whole[:2], masked.token_weights(MASK, REAL, aggregation, 5))
  np.testing.assert_array_equal(whole[2:], 0.0)


@pytest.mark.parametrize(
  ("aggregation", "total"),
  [
    ("sequence_mean", 1),
    ("token_mean", 1),
    ("group_token_mean", 1),
    ("constant", 3 / 5),
    ("prompt_sum", 3),
  ],
)
def test_groups_that_are_filled_in_part_count_as_groups(aggregation, total):
  """Four prompts with one solution each in groups of four, as labelled steps of a file come; three
  tokens train.
  """
  lengths = jnp.zeros((4, 4), int).at[:, 0].set(5)
  mask = (lengths[..., None] > 0) * jnp.array([1.0, 0.0, 1.0, 0.0, 1.0])
  weights = masked.token_weights(mask, lengths, aggregation, max_length=5)
  np.testing.assert_allclose(jnp.sum(weights), total, rtol=1e-6)


def test_equal_lengths_make_token_mean_and_sequence_mean_one():
  mask = jnp.ones((3, 2, 4))
  lengths = jnp.full((3, 2), 4)
  token, sequence = (
    masked.token_weights(mask, lengths, a, 4) for a in ("token_mean", "sequence_mean")
  )
  np.testing.assert_allclose(token, sequence, rtol=1e-6)


def test_unknown_aggregation_is_refused():
  with pytest.raises(SettingError, match="aggregation='mean'.*sequence_mean"):
    masked.token_weights(MASK, REAL, "mean", 5)


@pytest.mark.parametrize(
  "fn", [masked.masked_sum, masked.masked_mean, masked.masked_std, masked.whiten]
)
def test_a_mask_that_does_not_fit_is_refused(fn):
  x = jnp.ones((3, 4, 5))
  fn(x, jnp.ones((3, 4, 5)))
  for shape in ((4, 5), (3, 4), (3, 4, 6)):
    with pytest.raises(AssertionError):
      fn(x, jnp.ones(shape))


def test_a_mask_of_each_sequence_broadcasts():
  x = jnp.arange(24.0).reshape(2, 3, 4)
  mask = jnp.array([[[1.0], [0.0], [1.0]], [[0.0], [0.0], [0.0]]])
  np.testing.assert_array_equal(
    masked.masked_sum(x, mask, axis=2), [[6.0, 0.0, 38.0], [0.0, 0.0, 0.0]]
  )
  np.testing.assert_array_equal(masked.masked_mean(x, mask), 44.0 / 8)


def test_largest_counts_what_is_on_the_mask_and_rounds_up():
  """Of 5, 1, 4, 2 the largest half is 5 and 4, whatever lies in the padding."""
  x, mask = jnp.array([[5.0, 1.0, 9.0], [4.0, 2.0, 8.0]]), jnp.array([[1.0, 1, 0], [1, 1, 0]])
  for share, expected in (
    (0.5, [[1, 0, 0], [1, 0, 0]]),
    (0.51, [[1, 0, 0], [1, 1, 0]]),
    (1e-6, [[1, 0, 0], [0, 0, 0]]),
    (1.0, [[1, 1, 0], [1, 1, 0]]),
  ):
    np.testing.assert_array_equal(masked.largest(x, mask, share), expected)
  np.testing.assert_array_equal(masked.largest(x, 0 * mask, 0.5), 0.0)
  for share, n, count in ((0.002, 1500, 3), (0.002, 1501, 4), (0.3, 50, 15), (0.1, 10, 1)):
    assert masked.largest(jnp.arange(n), jnp.ones(n), share).sum() == count
  tied = masked.largest(jnp.array([3.0, 3.0, 1.0]), jnp.ones(3), 0.3)
  np.testing.assert_array_equal(tied, [1, 1, 0])
