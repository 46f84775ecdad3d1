"""The worked examples of the project's seed text "How fast versus how much", to the digits printed
there.

All run through `grpo.loss`, a token at a time. The text factors the surrogate as A min(rho,
clip(rho)) in one place, which contradicts its own Example 3; the table is what is right.
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
  [
    (np.log(0.5), -0.0056, 0.0144),
    (np.log(0.1), -0.0278, -0.0078),
    (-50 * np.log(10), -0.0333, -0.0133),
  ],
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
  p, ref, a = (
    jnp.asarray(x, jnp.float32) for x in (rng.random(50), rng.random(50), rng.normal(size=50))
  )
  expected = a + 0.04 * (ref / p - 1)
  np.testing.assert_allclose(
    coefficient(jnp.log(p), jnp.log(ref), a, 0.04), expected, rtol=1e-4, atol=1e-5
  )


def test_no_zero_where_the_advantage_exceeds_beta():
  p = jnp.logspace(-6, 0, 40)
  log_p, log_ref = (x.ravel() for x in jnp.meshgrid(jnp.log(p), jnp.log(p)))
  assert np.all(coefficient(log_p, log_ref, 0.0401, 0.04) > 0)
  below = coefficient(log_p, log_ref, 0.0399, 0.04)  # and a little below there is one
  assert np.any(below < 0) and np.any(below > 0)


def tabular(log_odds, advantages, weights, bounds=None, log_ref=None, **changes):
  """d J / d log-odds of independent tokens, as a function of their log-odds. [n] -> [n]."""
  cfg, old = cases.settings(**changes), jax.nn.log_sigmoid(log_odds)
  free = cases.settings(target_prob)

  def j(z):
    lp = jax.nn.log_sigmoid(z)
    batch = cases.one_token_batch(lp, advantages, weights, old, log_ref)
    if bounds is None:
      return -grpo.loss(cases.one_token_outputs(lp), batch, cfg)[0]
    lower, upper = (jnp.reshape(b, (-1, 1, 1)) for b in bounds)
    batch = cases.replace(batch, extra={"lower": lower, "upper": upper})
    return -target_prob.loss(cases.one_token_outputs(lp), batch, free)[0]

  return jax.grad(j)


def run_to_the_end(log_odds, slope, lr, limit=1_000_000):
  """Plain gradient ascent until no token has a gradient (mu -> infinity), for at most `limit`
  updates.

  Returns:
    Their probabilities and ratios to the old ones, and how many updates were made.
  """

  @jax.jit
  def run(z):
    def step(c):
      return c[0] + lr * c[1], slope(c[0] + lr * c[1]), c[2] + 1

    return jax.lax.while_loop(lambda c: jnp.any(c[1] != 0) & (c[2] < limit), step, (z, slope(z), 0))

  z, _, updates = run(log_odds)
  return (
    jax.nn.sigmoid(z),
    jnp.exp(jax.nn.log_sigmoid(z) - jax.nn.log_sigmoid(log_odds)),
    int(updates),
  )


# Every combination in one batch: 4 x 2 x 3 x 3 tokens.
LOG_ODDS, SIGNS = jnp.array([-2.0, -1.0, 0.0, 0.5]), jnp.array([1.0, -1.0])
SIZES, WEIGHTS = (
  jnp.array([0.1, 1.0, 3.0]),
  jnp.array([1.0, 1 / 4, 1 / 16]),
)  # |A|, and 1/G and 1/|o|
MIXED = [x.ravel() for x in jnp.meshgrid(LOG_ODDS, SIGNS, SIZES, WEIGHTS)]


def test_size_and_weight_say_how_fast_and_after_many_updates_only_the_sign_says_how_much():
  """The first gradients differ by a factor of 480, and all tokens come to rest at the bound of
  their sign.
  """
  z, sign, size, weight = MIXED
  slope = tabular(z, sign * size, weight)
  np.testing.assert_allclose(slope(z), sign * size * weight * (1 - jax.nn.sigmoid(z)), rtol=1e-5)
  _, ratio, updates = run_to_the_end(z, slope, lr=1e-3)
  assert updates < 1_000_000
  # no more than the largest step past it
  np.testing.assert_allclose(ratio, jnp.where(sign > 0, 1.2, 0.8), rtol=3e-3)


def test_after_many_updates_the_target_probabilities_are_reached_whatever_the_weights():
  z, sign, _, weight = MIXED
  p_old = jax.nn.sigmoid(z)
  p, _, updates = run_to_the_end(z, tabular(z, sign, weight, (p_old, p_old**-0.5)), lr=1e-3)
  assert updates < 1_000_000
  np.testing.assert_allclose(p, jnp.where(sign > 0, jnp.sqrt(p_old), p_old**2), rtol=3e-3)


def test_an_advantage_above_beta_comes_to_its_bound_however_far_the_reference_and_one_below_need_not():
  """The theorem, followed to the end. Past its bound a token is left alone here, so that it comes
  to rest.
  """
  mesh = jnp.meshgrid(LOG_ODDS, jnp.array([0.6, 0.25]), jnp.array([0.0, 3.0, 115.0]))
  z, size, away = (x.ravel() for x in mesh)
  slope = tabular(z, size, 1.0, log_ref=jax.nn.log_sigmoid(z) - away, beta=0.5, kl_past_bound=False)
  _, ratio, _ = run_to_the_end(z, slope, lr=1e-2, limit=10_000)
  np.testing.assert_array_equal(ratio >= 1.2, (size > 0.5) | (away == 0))
  assert np.all(ratio[ratio < 1.2] < 1)  # those fall


def test_footnote_1_a_target_above_one_is_never_reached_and_is_reported_as_reached_at_certainty():
  z = jnp.array([3.0])
  p, ratio, updates = run_to_the_end(z, tabular(z, 1.0, 1.0), lr=0.1, limit=20_000)
  assert updates == 20_000 and ratio[0] < 1.2 and p[0] > 0.999
  short, at, past = surrogate.progress(ratio, 1 / jax.nn.sigmoid(z), jnp.array([1.0]), 0.8, 1.2)
  assert at[0] and not short[0] and not past[0]


def test_footnote_2_a_large_coefficient_overshoots_and_is_reported():
  z, size = (x.ravel() for x in jnp.meshgrid(LOG_ODDS[:3], jnp.array([0.1, 1000.0])))
  _, ratio, _ = run_to_the_end(z, tabular(z, size, 1.0), lr=1e-3)
  np.testing.assert_array_equal(ratio > 1.22, size == 1000.0)
  past = surrogate.progress(ratio, 1 / jax.nn.sigmoid(z), size, 0.8, 1.2)[2]
  np.testing.assert_array_equal(past, size == 1000.0)
