"""CISPO."""

import jax.numpy as jnp
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
