"""Preference losses against written-out formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import preferences


def test_bradley_terry():
  loss = preferences.bradley_terry(jnp.array([2.0, 0.0, -500.0]), jnp.array([1.0, 0.0, 500.0]))
  np.testing.assert_allclose(
    loss, [-math.log(1 / (1 + math.exp(-1))), math.log(2), 1000.0], rtol=1e-6
  )


def test_dpo_value_and_gradient():
  h = jnp.array([0.7, -0.4])
  loss, slope = jax.value_and_grad(lambda h: preferences.dpo(h[0], h[1], 0.3))(h)
  s = 1 / (1 + math.exp(-0.3 * 1.1))
  np.testing.assert_allclose(loss, -math.log(s), rtol=1e-6)
  np.testing.assert_allclose(slope, [-0.3 * (1 - s), 0.3 * (1 - s)], rtol=1e-6)
  smooth = preferences.dpo(h[0], h[1], 0.3, label_smoothing=0.2)
  np.testing.assert_allclose(smooth, -0.8 * math.log(s) - 0.2 * math.log(1 - s), rtol=1e-6)


def test_a_tie_is_half_won():
  np.testing.assert_array_equal(preferences.won(jnp.array([0.1, 0.0, -2.0])), [1.0, 0.5, 0.0])


def test_step_loss_is_cross_entropy():
  scores, labels = np.array([-2.0, 0.3, 4.0]), np.array([0.0, 0.25, 1.0])
  p = 1 / (1 + np.exp(-scores))
  expected = -labels * np.log(p) - (1 - labels) * np.log(1 - p)
  np.testing.assert_allclose(
    preferences.step_loss(jnp.asarray(scores), jnp.asarray(labels)), expected, rtol=1e-5
  )


def test_monte_carlo_labels():
  successes, tries = jnp.array([0, 2, 8]), jnp.array([8, 8, 8])
  np.testing.assert_allclose(preferences.soft_labels(successes, tries), [0, 0.25, 1])
  np.testing.assert_array_equal(preferences.hard_labels(successes), [0, 1, 1])


@pytest.mark.parametrize(
  "call",
  [
    preferences.bradley_terry,
    lambda x, y: preferences.dpo(x, y, 0.1),
    preferences.step_loss,
    preferences.soft_labels,
  ],
)
def test_shapes_that_do_not_fit_are_refused(call):
  with pytest.raises(AssertionError):
    call(jnp.ones((3, 2)), jnp.ones((2,)))
