"""Ratios, clips and mismatch weights against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import surrogate

RATIO = jnp.array([0.5, 0.8, 1.0, 1.1, 1.3, 5.0])


def test_clip_for_both_signs():
  np.testing.assert_allclose(
    surrogate.clipped(RATIO, 2.0, 0.8, 1.2), [1.0, 1.6, 2.0, 2.2, 2.4, 2.4], rtol=1e-6
  )
  np.testing.assert_allclose(
    surrogate.clipped(RATIO, -1.0, 0.8, 1.2), [-0.8, -0.8, -1.0, -1.1, -1.3, -5.0], rtol=1e-6
  )


def test_two_sided_clip_bounds_bad_tokens_only():
  np.testing.assert_allclose(
    surrogate.clipped(RATIO, -1.0, 0.8, 1.2, 3.0)[-2:], [-1.3, -3.0], rtol=1e-6
  )
  np.testing.assert_allclose(
    surrogate.clipped(RATIO, 1.0, 0.8, 1.2, 3.0), surrogate.clipped(RATIO, 1.0, 0.8, 1.2)
  )


def test_bounds_of_each_token():
  ratio, lower, upper = (
    jnp.array([2.0, 2.0, 0.1]),
    jnp.array([0.5, 0.5, 0.3]),
    jnp.array([1.5, 3.0, jnp.inf]),
  )
  np.testing.assert_allclose(
    surrogate.clipped(ratio, 1.0, lower, upper), [1.5, 2.0, 0.1], rtol=1e-6
  )
  np.testing.assert_allclose(
    surrogate.clipped(ratio, -1.0, lower, upper), [-2.0, -2.0, -0.3], rtol=1e-6
  )


def test_gradient_stops_past_the_bound_and_is_whole_at_ratio_one():
  slope = jax.vmap(jax.grad(lambda r, a: surrogate.clipped(r, a, 0.8, 1.2)))
  np.testing.assert_allclose(
    slope(jnp.array([1.0, 1.3, 0.7, 1.0, 1.3, 0.7]), jnp.array([1.0] * 3 + [-1.0] * 3)),
    [1, 0, 1, -1, -1, 0],
  )


def test_ratio_is_cut():
  np.testing.assert_allclose(
    surrogate.token_ratio(jnp.array([0.0, -90.0]), jnp.array([-90.0, 0.0])),
    np.exp([20.0, -20.0]),
    rtol=1e-5,
  )


def test_sequence_ratio_is_the_geometric_mean_over_the_mask():
  new, old = jnp.log(jnp.array([[[0.5, 0.2, 0.9]]])), jnp.log(jnp.array([[[0.25, 0.4, 0.001]]]))
  mask = jnp.array([[[1.0, 1.0, 0.0]]])
  np.testing.assert_allclose(surrogate.sequence_ratio(new, old, mask), [[[1.0]]], rtol=1e-6)
  np.testing.assert_allclose(
    surrogate.sequence_token_ratio(new, old, mask), jnp.ones((1, 1, 3)), rtol=1e-6
  )
  slope = jax.grad(lambda x: surrogate.sequence_token_ratio(x, old, mask)[0, 0, 1])(new)
  np.testing.assert_allclose(slope, [[[0, 1, 0]]], atol=1e-6)


def test_cispo_keeps_a_gradient_everywhere():
  slope = jax.grad(lambda x: surrogate.cispo(x, jnp.exp(x), 2.0, 1.5))
  np.testing.assert_allclose(
    [slope(0.0), slope(1.0), slope(-1.0)], [2.0, 3.0, 2.0 * np.exp(-1)], rtol=1e-6
  )


def test_beyond_and_progress():
  a = jnp.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0])
  ratio = jnp.array([1.0, 1.2, 1.3, 1.0, 1.0, 0.8, 0.5, 9.0])
  largest = 1 / jnp.array([0.1, 0.1, 0.1, 0.9999, 0.1, 0.1, 0.1, 0.1])
  low, high, above_delta = surrogate.beyond(ratio, a, 0.8, 1.2)
  np.testing.assert_array_equal(low, [0, 0, 0, 0, 0, 0, 1, 0])
  np.testing.assert_array_equal(high, [0, 0, 1, 0, 0, 0, 0, 0])
  assert not above_delta.any()
  two_sided = surrogate.beyond(
    jnp.array([1.4, 1.6, 1.6, 0.7]), jnp.array([-1.0, -1.0, 1.0, -1.0]), 0.8, 1.2, delta=1.5
  )
  # The two-sided clip has no gradient above delta.
  np.testing.assert_array_equal(two_sided, [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]])
  short, at, past = surrogate.progress(ratio, largest, a, 0.8, 1.2)
  np.testing.assert_array_equal(short, [1, 0, 0, 0, 1, 0, 0, 0])
  # the fourth is certain: it cannot reach its bound
  np.testing.assert_array_equal(at, [0, 1, 0, 1, 0, 1, 0, 0])
  np.testing.assert_array_equal(past, [0, 0, 1, 0, 0, 0, 1, 0])


def test_progress_to_a_narrow_bound():
  """GSPO's bounds are a few ten-thousandths from 1: a ratio of 1 is short of them."""
  a = jnp.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
  ratio = jnp.array([1.0, 1.0, 1.0004, 0.9997, 1.0008, 0.9993])
  stand = surrogate.progress(ratio, jnp.full(6, 9.0), a, 1 - 3e-4, 1 + 4e-4)
  np.testing.assert_array_equal(np.argmax(stand, axis=0), [0, 0, 1, 1, 2, 2])
  np.testing.assert_array_equal(np.sum(stand, axis=0), 1)


@pytest.mark.parametrize(
  "call",
  [
    lambda x, y: surrogate.token_ratio(x, y),
    lambda x, y: surrogate.sequence_ratio(x, x, y),
    lambda x, y: surrogate.sequence_token_ratio(x, y, x),
    lambda x, y: surrogate.clipped(x, y, 0.8, 1.2),
    lambda x, y: surrogate.clipped(x, x, y, 1.2),
    lambda x, y: surrogate.clipped(x, x, 0.8, y),
    lambda x, y: surrogate.cispo(x, x, y, 1.2),
    lambda x, y: surrogate.cispo(x, x, x, y),
    lambda x, y: surrogate.beyond(x, y, 0.8, 1.2),
    lambda x, y: surrogate.progress(x, y, x, 0.8, 1.2),
  ],
)
def test_shapes_that_do_not_fit_are_refused(call):
  """Also [G, L] beside [P, G, L], which numpy would repeat P times."""
  x = jnp.ones((3, 4, 5))
  call(x, jnp.ones((3, 4, 5)))
  for shape in ((4, 5), (5,), (3, 4), (3, 4, 6), (1, 3, 4, 5)):
    with pytest.raises(AssertionError):
      call(x, jnp.ones(shape))


def test_a_number_of_each_sequence_broadcasts():
  x, of_sequence = jnp.ones((3, 4, 5)), jnp.full((3, 4, 1), 2.0)
  assert surrogate.clipped(of_sequence, x, 0.8, 1.2).shape == x.shape
  assert surrogate.cispo(x, of_sequence, x, 1.2).shape == x.shape
  assert surrogate.progress(of_sequence, of_sequence, x, 0.8, 1.2)[0].shape == x.shape
