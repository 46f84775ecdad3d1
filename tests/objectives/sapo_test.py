"""SAPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import sapo
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_the_coefficient_is_gated_by_sech_squared():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(sapo, r, tau_positive=0.7, tau_negative=2.0)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  tau = jnp.where(batch.advantages > 0, 0.7, 2.0)
  gate = 1 / jnp.cosh(tau * (rho - 1) / 2) ** 2
  check(sapo, out, batch, cfg, gate * rho * batch.advantages)


def test_on_policy_it_is_reinforce_and_its_value_is_2_a_over_tau():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(sapo, r)
  check(sapo, out, batch, cfg, batch.advantages)
  tau = jnp.where(batch.advantages > 0, 1.0, 1.05)
  value = -sapo.loss(out, batch, cfg)[0]
  np.testing.assert_allclose(value, jnp.sum(batch.weights * 2 * batch.advantages / tau), rtol=1e-5)


def test_with_a_small_tau_nothing_is_gated():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(sapo, r, tau_positive=1e-5, tau_negative=1e-5)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  check(sapo, out, batch, cfg, rho * batch.advantages)


def test_a_tau_of_0_is_refused():
  with pytest.raises(SettingError, match="tau_negative=0.0: use a finite number of at least 1e-06"):
    cases.settings(sapo, tau_negative=0.0)
