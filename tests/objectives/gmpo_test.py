"""GMPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import gmpo, grpo, gspo
from objectives.coefficients_test import check, prepared, value_and_slope

pytestmark = pytest.mark.usefixtures("float64")


def test_the_coefficient_is_the_geometric_ratio_on_tokens_that_are_not_clipped():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(gmpo, r, clip_low=0.1, clip_high=0.2)
  log_rho = np.where(batch.mask > 0, out.logprobs - r.old_logprobs, 0.0)
  up, down = np.asarray(batch.advantages > 0), np.asarray(batch.advantages < 0)
  clipped = np.where(up, np.minimum(log_rho, 0.2), np.where(down, np.maximum(log_rho, -0.1), 0))
  length = np.maximum(np.asarray(r.lengths)[..., None], 1)
  ratio = np.exp(clipped.sum(2, keepdims=True) / length)
  inside = clipped == log_rho
  assert 0 < inside[np.asarray(batch.mask) > 0].mean() < 1
  check(gmpo, out, batch, cfg, ratio * batch.advantages * inside)


def test_without_a_clip_it_is_gspo():
  r = cases.rollouts()
  out = cases.outputs(r)
  (value, slope), (other_value, other_slope) = (
    value_and_slope(module, out, *prepared(module, r, clip_low=9.0, clip_high=9.0))
    for module in (gmpo, gspo)
  )
  np.testing.assert_allclose(value, other_value, rtol=1e-6)
  np.testing.assert_allclose(slope, other_slope, rtol=1e-6, atol=1e-9)


def test_on_one_token_it_is_grpo_with_bounds_of_the_logarithm():
  r = cases.rollouts(L=1)
  out = cases.outputs(r, spread=1.0)
  bounds = dict(clip_low=1 - np.exp(-0.4), clip_high=np.exp(0.4) - 1)
  value, slope = value_and_slope(gmpo, out, *prepared(gmpo, r))
  other_value, other_slope = value_and_slope(grpo, out, *prepared(grpo, r, **bounds))
  np.testing.assert_allclose(value, other_value, rtol=1e-6)
  np.testing.assert_allclose(slope, other_slope, rtol=1e-6, atol=1e-9)
  assert jnp.abs(value) > 1e-3 and 0 < jnp.mean(slope == 0) < 0.9
