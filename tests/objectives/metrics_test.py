"""The metrics that objectives report."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases

from grpo_jax.objectives import (
  grpo,
  rpg,
)
from grpo_jax.types import Outputs


def test_kl_metrics_are_of_the_policy_that_sampled():
  """E over samples of q of expm1(d) - d, d = log p - log q, is KL(q || p): q = pi_old against pi,
  the sampler against
  pi_old."""
  old, new, sampler = (jnp.log(jnp.array([p])) for p in (0.5, 0.25, 0.8))
  batch = cases.one_token_batch(old, jnp.ones(1), jnp.ones(1), old=old)
  batch = cases.replace(batch, sampler_logprobs=sampler[:, None, None])
  out = Outputs(new[:, None, None], jnp.zeros((1, 1, 1)), jnp.zeros((1, 1, 1)))
  found = grpo.loss(out, batch, cases.settings(grpo))[1]
  np.testing.assert_allclose(found["old_kl"][0], 0.5 - 1 - np.log(0.5), rtol=1e-5)
  np.testing.assert_allclose(found["mismatch_kl"][0], 0.625 - 1 - np.log(0.625), rtol=1e-5)


def test_what_the_two_sided_clip_stops_is_counted_apart():
  """Three bad tokens: below the lower bound, above delta, between."""
  lp, old = jnp.log(jnp.array([0.2, 0.8, 0.5])), jnp.log(jnp.array([0.5, 0.5, 0.5]))
  batch = cases.one_token_batch(lp, -1.0, 1.0, old)
  for objective in (grpo, rpg):
    found = objective.loss(
      cases.one_token_outputs(lp), batch, cases.settings(objective, clip_delta=1.5)
    )[1]
    assert {k: found[k] for k in ("clip_low", "clip_delta", "clip_high")} == {
      "clip_low": (1.0, 3.0),
      "clip_delta": (1.0, 3.0),
      "clip_high": (0.0, 3.0),
    }
    assert (
      "clip_delta"
      not in objective.loss(cases.one_token_outputs(lp), batch, cases.settings(objective))[1]
    )
