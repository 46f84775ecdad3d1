"""Pins the sign and the weight of what a loss has beside its gain: KL, entropy and critic."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import cispo, clip_cov, gmpo, grpo, gspo, kl_cov, ppo, rpg, sapo
from grpo_jax.objectives.coefficients import gradient_coefficient
from objectives.coefficients_test import prepared

pytestmark = pytest.mark.usefixtures("float64")

WITH_ENTROPY = sorted(
  {
    m.__name__.rpartition(".")[2]
    for o, m in cases.MODULES.items()
    if "entropy_bonus" in o.settings()
  }
)
WITH_KL = {
  name: module
  for name, module in ((m.__name__.rpartition(".")[2], m) for m in cases.MODULES.values())
  if "kl_estimator" in module.OBJECTIVE.settings()
}


def by_name(name):
  return next(m for m in cases.MODULES.values() if m.__name__.endswith(f".{name}"))


def test_these_objectives_have_the_terms():
  """Names them, so that none drops out of what follows in silence."""
  modules = {clip_cov, cispo, gmpo, grpo, gspo, kl_cov, sapo}
  assert set(WITH_KL.values()) == modules
  assert modules | {ppo, rpg} >= set(map(by_name, WITH_ENTROPY)) >= {grpo, ppo}


@pytest.mark.parametrize("name", WITH_ENTROPY)
def test_entropy_is_added_to_what_is_maximised(name):
  objective, r = by_name(name), cases.rollouts()
  out = cases.outputs(r)
  slopes = []
  for bonus in (0.0, 5.0):
    batch, cfg = prepared(objective, r, entropy_bonus=bonus)
    slopes.append(jax.grad(lambda out: objective.OBJECTIVE.loss(out, batch, cfg)[0])(out))  # noqa: B023
  np.testing.assert_allclose(slopes[1].entropy, -5.0 * batch.weights * batch.mask, rtol=1e-6)
  np.testing.assert_array_equal(slopes[0].logprobs, slopes[1].logprobs)
  assert np.abs(batch.weights).max() > 0


@pytest.mark.parametrize("name", WITH_KL)
def test_the_kl_pulls_towards_the_reference(name):
  """Adds beta (pi_ref / pi - 1) to the coefficient, which is above 0 where pi is below pi_ref."""
  objective, r = by_name(name), cases.rollouts()
  out = cases.outputs(r)
  (batch, with_kl), (plain, without) = (prepared(objective, r, beta=beta) for beta in (0.1, 0.0))
  plain = cases.replace(plain, ref_logprobs=batch.ref_logprobs)
  found = gradient_coefficient(objective.OBJECTIVE, out, batch, with_kl) - gradient_coefficient(
    objective.OBJECTIVE, out, plain, without
  )
  expected = 0.1 * batch.weights * (jnp.exp(batch.ref_logprobs - out.logprobs) - 1.0)
  np.testing.assert_allclose(found, jnp.where(batch.mask > 0, expected, 0.0), rtol=1e-6, atol=1e-9)
  assert (expected > 1e-4).any() and (expected < -1e-4).any()


def test_the_critic_moves_towards_its_targets():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(ppo, r, value_clip=0.0, value_coef=0.7)
  slope = jax.grad(lambda out: ppo.loss(out, batch, cfg)[0])(out).values
  error = jnp.where(batch.mask > 0, out.values - batch.extra["returns"], 0.0)
  np.testing.assert_allclose(slope, 0.7 * batch.weights * error, rtol=1e-6, atol=1e-12)
  assert (slope > 1e-4).any() and (slope < -1e-4).any()
