"""The worked examples of the project's seed text "How fast versus how much", to the digits printed there.

All run through `grpo.loss`, a token at a time. The text factors the surrogate as A min(rho, clip(rho)) in one place,
which contradicts its own Example 3; the table is what is right.
"""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import grpo, target_prob
from grpo_jax.ops import surrogate


def objective(p, p_old, advantage, p_ref=None, beta=0.0, log_ref=None, **changes):
  """J of each token, as a function of its probability. [n] -> [n]."""
  ref = log_ref if log_ref is not None else None if p_ref is None else jnp.log(p_ref)
  cfg = cases.settings(beta=beta, **changes)

  def of_one(p):
    batch = cases.one_token_batch(jnp.log(p), advantage, 1.0, jnp.log(p_old), ref)
    return -grpo.loss(cases.one_token_outputs(jnp.log(p)), batch, cfg)[0]

  return of_one


@pytest.mark.parametrize(
  "p_old, advantage, table",
  [
    (0.010, 1.0, [(0.008, 0.8), (0.010, 1.0), (0.012, 1.2), (0.100, 1.2), (0.500, 1.2)]),
    (0.900, 1.0, [(0.800, 0.889), (0.900, 1.0), (0.950, 1.056), (1.000, 1.111)]),
    (0.900, -1.0, [(0.900, -1.0), (0.800, -0.889), (0.720, -0.8), (0.500, -0.8), (0.100, -0.8)]),
  ],
  ids=["example 1", "example 2", "example 3"],
)
def test_clipped_objective(p_old, advantage, table):
  j = objective(None, p_old, advantage)
  for p, expected in table:
    assert round(float(j(jnp.float32(p))), 3) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
  "log_ref, kl, total",
  [(np.log(0.5), -0.0056, 0.0144), (np.log(0.1), -0.0278, -0.0078), (-50 * np.log(10), -0.0333, -0.0133)],
)
def test_example_4_gradients_at_the_left_limit_of_the_clip_bound(log_ref, kl, total):
  log_ref = jnp.float32(log_ref)
  left = jnp.float32(0.6 - 1e-6)
  clip_term = jax.grad(objective(None, 0.5, 0.01))(left)
  both = jax.grad(objective(None, 0.5, 0.01, beta=0.02, log_ref=log_ref))(left)
  assert round(float(clip_term), 3) == 0.020
  assert round(float(both - clip_term), 4) == kl
  assert round(float(both), 4) == total


def test_at_exactly_the_bound_a_tie_splits_the_gradient_and_past_it_only_the_kl_is_left():
  # 1.25 and 0.5 are exact in binary, so that the ratio is exactly on the bound.
  ratio_slope = jax.grad(lambda r: surrogate.clipped(r, 1.0, 0.75, 1.25))
  assert 0.0 < ratio_slope(1.25) < 1.0
  past = jax.grad(objective(None, 0.5, 0.01, beta=0.02, p_ref=jnp.float32(0.5)))(jnp.float32(0.61))
  np.testing.assert_allclose(past, 0.02 * (0.5 / 0.61 - 1) / 0.61, rtol=1e-5)
  named = objective(None, 0.5, 0.01, beta=0.02, p_ref=jnp.float32(0.5), kl_past_bound=False)
  assert jax.grad(named)(jnp.float32(0.61)) == 0.0


def coefficient(log_p, log_ref, advantage, beta):
  """d J / d log pi at pi = pi_old, of each token. [n]"""

  def total(lp):
    batch = cases.one_token_batch(lp, advantage, 1.0, None, log_ref)
    return -grpo.loss(cases.one_token_outputs(lp), batch, cases.settings(beta=beta))[0]

  return jax.grad(total)(log_p)


def test_equation_21():
  rng = np.random.default_rng(0)
  p, ref, a = (jnp.asarray(x, jnp.float32) for x in (rng.random(50), rng.random(50), rng.normal(size=50)))
  expected = a + 0.04 * (ref / p - 1)
  np.testing.assert_allclose(coefficient(jnp.log(p), jnp.log(ref), a, 0.04), expected, rtol=1e-4, atol=1e-5)


def test_no_zero_where_the_advantage_exceeds_beta():
  p = jnp.logspace(-6, 0, 40)
  log_p, log_ref = (x.ravel() for x in jnp.meshgrid(jnp.log(p), jnp.log(p)))
  assert np.all(coefficient(log_p, log_ref, 0.0401, 0.04) > 0)
  below = coefficient(log_p, log_ref, 0.0399, 0.04)  # and a little below there is one
  assert np.any(below < 0) and np.any(below > 0)


def run_to_the_end(log_odds, advantages, weights, lr, steps, bounds=None):
  """Gradient ascent on the log-odds of independent tokens, mu -> infinity. Returns their probabilities and ratios."""
  old = jax.nn.log_sigmoid(log_odds)
  cfg = cases.settings()
  make = lambda z: cases.one_token_batch(jax.nn.log_sigmoid(z), advantages, weights, old)

  def loss(z):
    batch = make(z)
    if bounds is not None:
      batch = cases.replace(batch, extra={"lower": bounds[0].reshape(-1, 1, 1), "upper": bounds[1].reshape(-1, 1, 1)})
      return target_prob.loss(cases.one_token_outputs(jax.nn.log_sigmoid(z)), batch, cfg)[0]
    return grpo.loss(cases.one_token_outputs(jax.nn.log_sigmoid(z)), batch, cfg)[0]

  # A normalised step: with a fixed lr the small weights would only need more steps, which is the point.
  step = lambda z, _: (z - lr * jnp.sign(jax.grad(loss)(z)), None)
  z, _ = jax.lax.scan(step, log_odds, None, steps)
  return jax.nn.sigmoid(z), jnp.exp(jax.nn.log_sigmoid(z) - old), old


LOG_ODDS = jnp.array([-2.0, -1.0, 0.0, 0.5, -2.0, -1.0, 0.0, 0.5])
SIGNS = jnp.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])


@pytest.mark.parametrize("size, weight", [(1.0, 1.0), (0.01, 1.0), (30.0, 1.0), (1.0, 1 / 64), (1.0, 1 / 1000)])
def test_after_many_updates_only_the_sign_and_the_bounds_matter(size, weight):
  _, ratio, _ = run_to_the_end(LOG_ODDS, size * SIGNS, weight, lr=1e-3, steps=2000)
  np.testing.assert_allclose(ratio, jnp.where(SIGNS > 0, 1.2, 0.8), rtol=2e-3)


def test_after_many_updates_the_target_probabilities_are_reached():
  p_old = jax.nn.sigmoid(LOG_ODDS)
  p, _, _ = run_to_the_end(LOG_ODDS, SIGNS, 1.0, 1e-3, 4000, (p_old, p_old**-0.5))
  np.testing.assert_allclose(p, jnp.where(SIGNS > 0, jnp.sqrt(p_old), p_old**2), rtol=3e-3)


def test_footnote_1_a_target_above_one_is_never_reached_and_is_reported_as_reached_at_certainty():
  p, ratio, old = run_to_the_end(jnp.array([3.0]), jnp.array([1.0]), 1.0, lr=1e-2, steps=1000)
  assert ratio[0] < 1.2 and p[0] > 0.999
  short, at, past = surrogate.progress(ratio, old, jnp.array([1.0]), 0.8, 1.2)
  assert at[0] and not short[0] and not past[0]


def test_footnote_2_a_large_step_overshoots_and_is_reported():
  _, ratio, old = run_to_the_end(LOG_ODDS[:3], SIGNS[:3], 1.0, lr=1.0, steps=3)
  assert np.all(ratio > 1.25)
  np.testing.assert_array_equal(surrogate.progress(ratio, old, SIGNS[:3], 0.8, 1.2)[2], True)
