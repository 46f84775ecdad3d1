"""The metrics that objectives report."""

import dataclasses

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


def test_means_are_over_the_tokens_that_are_trained():
  """Takes p = 1/2 and 1/4, under a reference of 1/4 for both and advantages of 1 and -2."""
  lp, ref = jnp.log(jnp.array([0.5, 0.25])), jnp.log(jnp.array([0.25, 0.25]))
  batch = cases.one_token_batch(lp, jnp.array([1.0, -2.0]), 1.0, old=lp)
  batch = cases.replace(batch, ref_logprobs=jnp.broadcast_to(ref[:, None, None], batch.mask.shape))
  out = cases.one_token_outputs(lp)
  out = dataclasses.replace(
    out, entropy=jnp.broadcast_to(jnp.array([[[0.7]], [[0.1]]]), batch.mask.shape)
  )
  found = grpo.loss(out, batch, cases.settings(grpo))[1]
  mean = {name: float(found[name][0] / found[name][1]) for name in found}
  k3 = [0.5 - 1 + np.log(2), 0.0]  # exp(d) - d - 1 with d = log(ref / pi)
  for name, want in (
    ("logprob", np.log(0.5) * 1.5),
    ("entropy", 0.4),
    ("advantage_abs", 1.5),
    ("kl", np.mean(k3)),
    ("kl_k1", np.log(2) / 2),
    ("surrogate", -0.5),
  ):
    np.testing.assert_allclose(mean[name], want, atol=1e-6, err_msg=name)
  one = cases.replace(batch, mask=batch.mask.at[1].set(0.0), weights=batch.weights.at[1].set(0.0))
  total, count = grpo.loss(out, one, cases.settings(grpo))[1]["kl_k1"]
  np.testing.assert_allclose(total / count, np.log(2), rtol=1e-6)


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
