"""CISPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import cispo
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_cispo_has_a_cap_and_no_lower_bound():
  _, cfg, batch, _ = cases.case("cispo")
  assert cispo.bounds(batch, cfg) == (0.0, 1.2)


def test_cispo_is_the_capped_ratio():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(cispo, r)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  check(cispo, out, batch, cfg, jnp.minimum(rho, 1.2) * batch.advantages)


def test_scale_rl_has_a_cap_of_5_and_the_std_of_all_advantages():
  r = cases.rollouts()
  out = cases.outputs(r, spread=2.0)
  batch, cfg = prepared(cispo, r, **cases.of_preset("scale_rl"))
  total = jnp.sum(jnp.where(r.given, r.rewards, 0.0), axis=2)
  centred = total - total.mean(axis=1, keepdims=True)
  advantages = centred / (centred.std(ddof=1) + 1e-4)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  assert 0 < jnp.mean(rho[batch.mask > 0] > 5) < 1
  np.testing.assert_allclose(batch.advantages, advantages[..., None] * batch.mask, rtol=1e-5)
  check(cispo, out, batch, cfg, jnp.minimum(rho, 5.0) * batch.advantages)
