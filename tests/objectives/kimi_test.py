"""Kimi k1.5's objective."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import kimi
from grpo_jax.objectives.coefficients import gradient_coefficient
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_the_coefficient_is_that_of_the_square():
  """By automatic differentiation of -(A - tau S)^2 / (2 tau), of each completion."""
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(kimi, r, tau=0.3)
  a = jnp.max(jnp.abs(batch.advantages), axis=2) * jnp.sign(jnp.sum(batch.advantages, axis=2))
  weight = jnp.max(batch.weights, axis=2)

  def square(logprobs):
    moved = jnp.sum(batch.mask * (logprobs - r.old_logprobs), axis=2)
    return jnp.sum(-weight * (a - 0.3 * moved) ** 2 / 0.6)

  found = gradient_coefficient(kimi.OBJECTIVE, out, batch, cfg)
  np.testing.assert_allclose(found, jax.grad(square)(out.logprobs), rtol=1e-6, atol=1e-9)


def test_on_policy_it_is_reinforce_with_the_groups_mean():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(kimi, r)
  check(kimi, out, batch, cfg, batch.advantages)
  total = jnp.sum(jnp.where(r.given, r.rewards, 0.0), axis=2)
  centred = total - total.mean(axis=1, keepdims=True)
  np.testing.assert_allclose(batch.advantages[..., 0], centred, rtol=1e-6, atol=1e-9)


def test_it_rests_where_the_policy_has_moved_by_a_over_tau():
  """Makes the sum of the log-ratios of each completion A / tau."""
  r = cases.rollouts()
  batch, cfg = prepared(kimi, r, tau=0.5)
  share = batch.advantages / 0.5 / jnp.maximum(r.lengths, 1)[..., None]
  out = cases.replace(cases.outputs(r), logprobs=r.old_logprobs + share)
  check(kimi, out, batch, cfg, 0.0 * batch.advantages)
