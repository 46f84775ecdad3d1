"""Rejection-sampling fine-tuning."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import rft
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_a_completion_at_the_threshold_is_not_correct():
  r = cases.rollouts(P=1, G=3)
  r = cases.replace(r, rewards=jnp.zeros((1, 3, 6)).at[0, :, 0].set(jnp.array([0.25, 0.5, 0.75])))
  r = cases.replace(r, given=jnp.zeros((1, 3, 6), bool).at[:, :, 0].set(True))
  cfg = cases.settings(rft, threshold=0.5)
  np.testing.assert_array_equal(cases.prepare(r, cfg).advantages[0, :, 0], [0.0, 0.0, 1.0])
  lower = cases.replace(r, rewards=r.rewards * 2 / 3)
  assert not rft.flat(r, cfg, None)[0] and rft.flat(lower, cfg, None)[0]


def test_a_completion_without_a_reward_is_not_correct_whatever_the_threshold():
  r = cases.rollouts(P=2, G=2)
  given = jnp.zeros((2, 2, 6), bool).at[0, 0, 0].set(True)  # a group without any, too
  r = cases.replace(r, rewards=jnp.zeros((2, 2, 6)), given=given)
  cfg = cases.settings(rft, threshold=-0.5)
  np.testing.assert_array_equal(cases.prepare(r, cfg).advantages[..., 0], [[1, 0], [0, 0]])
  np.testing.assert_array_equal(rft.flat(r, cfg, None), [False, True])


def test_rft():
  r = cases.rollouts()
  batch, cfg = prepared(rft, r)
  correct = np.asarray((r.rewards * r.given).sum(2) > 0.5)[..., None]
  assert 0 < correct.mean() < 1
  check(rft, cases.outputs(r), batch, cfg, correct * 1.0)
