"""GRPO."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import common, grpo
from grpo_jax.objectives.base import Needs
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_the_mismatch_correction_weighs_the_surrogate_and_not_the_kl():
  _, _, batch, out = cases.case("grpo")
  batch = cases.replace(batch, sampler_logprobs=batch.old_logprobs - jnp.log(1.5))
  on, off = cases.settings(mismatch="token"), cases.settings()
  plain, weighted = (grpo.loss(out, batch, c)[0] for c in (off, on))
  np.testing.assert_allclose(weighted, 1.5 * plain, rtol=1e-5)
  plain_kl, weighted_kl = (
    grpo.loss(
      out,
      cases.replace(batch, advantages=0 * batch.advantages),
      cases.settings(beta=1.0, mismatch=m),
    )[0]
    for m in ("none", "token")
  )
  np.testing.assert_allclose(plain_kl, weighted_kl, rtol=1e-6)


def test_grpo_is_equation_21():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(grpo, r, beta=0.1)
  check(
    grpo,
    out,
    batch,
    cfg,
    batch.advantages + 0.1 * (jnp.exp(r.ref_logprobs - out.logprobs) - 1),
  )


def test_grpo_off_policy_is_the_ratio_inside_the_bounds():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(grpo, r)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  a = batch.advantages
  open_ = jnp.where(a > 0, rho < 1.2, rho > 0.8)
  assert 0.2 < np.mean(np.asarray(open_)) < 0.9
  check(grpo, out, batch, cfg, jnp.where(open_, rho * a, 0.0))


def test_grpo_weighted_kl():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(grpo, r, beta=0.1, kl_weighted=True, clip_low=0.99, clip_high=99.0)
  w = jnp.exp(out.logprobs - r.old_logprobs)
  expected = w * batch.advantages - 0.1 * w * (out.logprobs - r.ref_logprobs)
  check(grpo, out, batch, cfg, expected)


def test_a_completion_without_a_reward_has_no_kl_in_it_and_is_no_baseline():
  r = cases.rollouts(P=1, G=3)
  r = cases.replace(r, given=r.given.at[0, 1].set(False))
  cfg = cases.settings(beta=0.5, kl_in_reward=True)
  mask = common.completion_mask(r, False)
  kl = np.asarray(common.kl_to_come(r, mask, cfg.kl_estimator, "grpo"))[0]
  plain, found = (
    np.asarray(cases.prepare(r, c).advantages)[0] for c in (cases.settings(beta=0.5), cfg)
  )
  np.testing.assert_allclose(
    found, plain - 0.5 * mask[0] * np.stack([kl[0] - kl[2], 0 * kl[1], kl[2] - kl[0]])
  )
  assert np.abs(found - plain).max() > 0.01


def test_the_entropy_bonus_is_added_to_what_is_maximised():
  r = cases.rollouts()
  out = cases.outputs(r)
  gradients = []
  for bonus in (0.0, 5.0):
    cfg = cases.settings(entropy_bonus=bonus)
    batch = cases.prepare(r, cfg)
    gradients.append(jax.grad(lambda out: grpo.loss(out, batch, cfg)[0])(out))  # noqa: B023
  np.testing.assert_allclose(gradients[1].entropy, -5.0 * batch.weights, rtol=1e-6)
  np.testing.assert_array_equal(gradients[0].entropy, 0.0)
  np.testing.assert_array_equal(gradients[0].logprobs, gradients[1].logprobs)


def test_only_tokens_of_the_largest_entropy_learn_from_a():
  r = cases.rollouts()
  some = cases.prepare(r, cases.settings(top_entropy=0.2))
  whole = cases.prepare(r, cases.settings())
  inside = np.asarray(whole.mask) > 0
  least = np.sort(np.asarray(r.old_entropy)[inside])[-int(np.ceil(0.2 * inside.sum()))]
  chosen = inside & (np.asarray(r.old_entropy) >= least)
  assert 0 < chosen.sum() < inside.sum()
  np.testing.assert_array_equal(some.advantages, np.where(chosen, whole.advantages, 0.0))
  np.testing.assert_array_equal(some.weights, whole.weights)
  assert Needs.OLD_POLICY in cases.configured(top_entropy=0.2).needs
  assert cases.configured().needs == Needs.NOTHING
