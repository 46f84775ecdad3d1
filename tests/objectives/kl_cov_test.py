"""KL-Cov."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import kl_cov
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_the_tokens_of_the_largest_covariance_are_held():
  """A = 1, 1, -1, -1 with log pi = -1, -2, -1, -2: means 0 and -1.5, products 1/2, -1/2, -1/2, 1/2.

  A fifth token, off the mask, would have the largest.
  """
  found = kl_cov.covariance(
    jnp.array([[[1.0, 1.0, -1.0, -1.0, 9.0]]]),
    jnp.array([[[-1.0, -2.0, -1.0, -2.0, 9.0]]]),
    jnp.array([[[1.0, 1.0, 1.0, 1.0, 0.0]]]),
  )
  np.testing.assert_allclose(found[0, 0, :4], [0.5, -0.5, -0.5, 0.5])
  r = cases.rollouts()
  batch, _ = prepared(kl_cov, r, share=0.25)
  held = np.asarray(batch.extra["held"])
  inside = np.asarray(batch.mask) > 0
  a, b = np.asarray(batch.advantages, np.float64), np.asarray(r.old_logprobs, np.float64)
  cov = (a - a[inside].mean()) * (b - b[inside].mean())
  count = int(np.ceil(0.25 * inside.sum()))
  assert held.sum() == count and not held[~inside].any()
  assert cov[held > 0].min() >= np.sort(cov[inside])[-count]


def test_the_coefficient_takes_the_sign_of_the_log_ratio_off():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(kl_cov, r, share=0.25, penalty=0.7)
  moved = out.logprobs - r.old_logprobs
  expected = jnp.exp(moved) * batch.advantages - 0.7 * batch.extra["held"] * jnp.sign(moved)
  check(kl_cov, out, batch, cfg, expected)


def test_on_policy_it_is_reinforce():
  r = cases.rollouts()
  _, out = on_policy(r)
  batch, cfg = prepared(kl_cov, r)
  check(kl_cov, out, batch, cfg, batch.advantages)


def test_a_share_of_nothing_is_refused():
  with pytest.raises(SettingError, match="share=0.0: use a number from 1e-06 to 1"):
    cases.settings(kl_cov, share=0.0)


def test_where_no_token_has_an_advantage_none_is_held():
  r = cases.rollouts()
  flat = cases.replace(r, rewards=jnp.zeros_like(r.rewards))
  assert not np.asarray(prepared(kl_cov, flat)[0].extra["held"]).any()
