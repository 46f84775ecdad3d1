"""VESPO."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import vespo
from grpo_jax.ops import surrogate
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_the_coefficient_weighs_the_whole_completion():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(vespo, r)
  d = np.where(batch.mask > 0, out.logprobs - r.sampler_logprobs, 0.0)
  w = np.exp(d.sum(axis=2, keepdims=True))
  good = np.exp(3.0) * w**2 * np.exp(-3 * w)
  bad = np.exp(2.0) * w**3 * np.exp(-2 * w)
  phi = np.where(batch.advantages >= 0, good, bad)
  check(vespo, out, batch, cfg, phi * batch.advantages)


def test_where_the_policy_is_the_sampler_it_is_reinforce():
  r = cases.rollouts()
  batch, cfg = prepared(vespo, r)
  out = cases.replace(cases.outputs(r), logprobs=r.sampler_logprobs)
  check(vespo, out, batch, cfg, batch.advantages)


@pytest.mark.parametrize("k, lam, power", [(0.0, 0.0, 0), (1.0, 0.0, 1)])
def test_without_damping_it_is_reinforce_or_importance_sampling(k, lam, power):
  r = cases.rollouts()
  out = cases.outputs(r)
  same = {"k_positive": k, "k_negative": k, "lam_positive": lam, "lam_negative": lam}
  batch, cfg = prepared(vespo, r, **same)
  d = np.where(batch.mask > 0, out.logprobs - r.sampler_logprobs, 0.0)
  w = np.exp(d.sum(axis=2, keepdims=True))
  check(vespo, out, batch, cfg, w**power * batch.advantages)


@pytest.mark.parametrize("k, lam, most", [(2.0, 3.0, 1.208), (3.0, 2.0, 1.242)])
def test_the_weight_is_1_at_1_and_largest_at_k_over_lam(k, lam, most):
  def phi(w):
    one = jnp.ones((1, 1, 1))
    return surrogate.smooth_weight(jnp.log(w) * one, one, k * one, lam * one)[0, 0, 0]

  np.testing.assert_allclose(phi(1.0), 1.0, rtol=1e-6)
  np.testing.assert_allclose(phi(k / lam), most, rtol=1e-3)
  np.testing.assert_allclose(jax.grad(phi)(k / lam), 0.0, atol=1e-5)
