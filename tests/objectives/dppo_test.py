"""DPPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import cispo, dppo
from grpo_jax.objectives.coefficients import gradient_coefficient
from grpo_jax.ops import surrogate
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("moved, bound", [("tv", 0.05), ("kl", 0.01)])
def test_the_coefficient(moved, bound):
  """By a loop over tokens."""
  r = cases.rollouts()
  r = cases.replace(r, sampler_logprobs=jnp.minimum(r.sampler_logprobs, -0.01))
  out = cases.outputs(r)
  out = cases.replace(out, logprobs=jnp.minimum(out.logprobs, -0.01))
  batch, cfg = prepared(dppo, r, moved=moved, bound=bound, cap=1.3)
  expected = np.zeros(batch.mask.shape)
  left_out = 0
  for place in np.argwhere(np.asarray(batch.mask) > 0):
    p, g, t = place
    pi, mu = np.exp(float(out.logprobs[p, g, t])), np.exp(float(r.sampler_logprobs[p, g, t]))
    a = float(batch.advantages[p, g, t])
    if moved == "tv":
      far = abs(pi - mu) > bound
    else:
      far = mu * np.log(mu / pi) + (1 - mu) * np.log((1 - mu) / (1 - pi)) > bound
    if far and (pi - mu) * a > 0:
      left_out += 1
      continue
    expected[p, g, t] = min(pi / mu, 1.3) * a
  assert left_out
  check(dppo, out, batch, cfg, expected)


def test_without_a_bound_it_is_cispo_around_the_sampler():
  r = cases.rollouts()
  out = cases.outputs(r)
  found = gradient_coefficient(dppo.OBJECTIVE, out, *prepared(dppo, r, bound=1.0, cap=2.0))
  r = cases.replace(r, old_logprobs=r.sampler_logprobs)
  other = gradient_coefficient(cispo.OBJECTIVE, out, *prepared(cispo, r, clip_high=1.0))
  np.testing.assert_allclose(found, other, rtol=1e-6, atol=1e-9)


def test_where_the_policy_is_the_sampler_it_is_reinforce():
  r = cases.rollouts()
  batch, cfg = prepared(dppo, r)
  out = cases.replace(cases.outputs(r), logprobs=r.sampler_logprobs)
  check(dppo, out, batch, cfg, batch.advantages)


def test_a_token_that_moves_back_is_never_left_out():
  mu, pi = jnp.log(jnp.full((1, 1, 2), 0.5)), jnp.log(jnp.array([[[0.9, 0.1]]]))
  back = jnp.array([[[-1.0, 1.0]]])
  for moved in surrogate.MOVES:
    np.testing.assert_array_equal(surrogate.within_move(pi, mu, back, moved, 0.01), 1.0)
    np.testing.assert_array_equal(surrogate.within_move(pi, mu, -back, moved, 0.01), 0.0)


@pytest.mark.parametrize("mu, a", [(0.86, 1.0), (0.14, -1.0)])
def test_what_cannot_move_as_far_as_the_bound_is_never_left_out(mu, a):
  """Starts at 0.86, from where a probability rises by at most 0.14, or falls from 0.14."""
  pi = jnp.linspace(-12.0, 0.0, 50).reshape(1, 1, 50)
  one = jnp.ones_like(pi)
  found = surrogate.within_move(pi, jnp.log(mu) * one, a * one, "tv", 0.15)
  np.testing.assert_array_equal(found, 1.0)
  other = surrogate.within_move(pi, jnp.log(mu) * one, a * one, "tv", 0.13)
  assert 0 < other.mean() < 1


def test_a_rare_token_may_change_its_ratio_many_times_over():
  mu, pi = jnp.log(jnp.full((1, 1, 1), 0.001)), jnp.log(jnp.full((1, 1, 1), 0.1))
  np.testing.assert_array_equal(surrogate.within_move(pi, mu, jnp.ones((1, 1, 1)), "tv", 0.15), 1.0)
