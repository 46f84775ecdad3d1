"""RPG."""

import jax.numpy as jnp
import objective_cases as cases
import pytest

from grpo_jax.objectives import rpg
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
  "divergence, term",
  [
    ("reverse", lambda lp, old, ref: -jnp.exp(lp - old) * (lp - ref + 1)),
    ("reverse_unnormalised", lambda lp, old, ref: -jnp.exp(lp - old) * (lp - ref)),
    ("forward", lambda lp, old, ref: jnp.exp(ref - old)),
    ("forward_unnormalised", lambda lp, old, ref: jnp.exp(ref - old) - jnp.exp(lp - old)),
  ],
)
def test_rpg(divergence, term):
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(rpg, r, beta=0.1, divergence=divergence, clip_low=0.99, clip_high=99.0)
  w = jnp.exp(out.logprobs - r.old_logprobs)
  expected = w * batch.advantages + 0.1 * term(out.logprobs, r.old_logprobs, r.ref_logprobs)
  check(rpg, out, batch, cfg, expected)
