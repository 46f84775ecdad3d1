"""The "one paradigm" table: each objective's coefficient of grad log pi, by autodiff, against its
closed form.

A coefficient here includes the batch's weight of the token (its 1/|o|, 1/G ...), so closed forms
are multiplied by it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import (
  cispo,
  distill,
  distill_offline,
  dpo,
  grpo,
  gspo,
  ppo,
  rft,
  rpg,
  sft,
  target_prob,
)
from grpo_jax.objectives.coefficients import gradient_coefficient
from grpo_jax.ops import advantages as adv


def prepared(objective, r, **changes):
  cfg = cases.settings(objective, **changes)
  return cases.prepare(r, cfg), cfg


def on_policy(r):
  """(rollouts without old log-probs, outputs of the policy that sampled them)."""
  out = cases.outputs(r, spread=0.0)
  return cases.replace(r, old_logprobs=None), out


def check(objective, out, batch, cfg, expected, **tolerance):
  got = gradient_coefficient(objective.OBJECTIVE, out, batch, cfg)
  np.testing.assert_allclose(
    got, batch.weights * expected, **({"rtol": 1e-4, "atol": 1e-7} | tolerance)
  )


@pytest.mark.parametrize("objective", [sft, distill_offline])
def test_supervised(objective):
  r = cases.rollouts()
  batch, cfg = prepared(objective, r)
  check(objective, cases.outputs(r), batch, cfg, 1.0)


def test_rft():
  r = cases.rollouts()
  batch, cfg = prepared(rft, r)
  correct = np.asarray((r.rewards * r.given).sum(2) > 0.5)[..., None]
  assert 0 < correct.mean() < 1
  check(rft, cases.outputs(r), batch, cfg, correct * 1.0)


def test_dpo():
  r = cases.rollouts(G=2)
  batch, cfg = prepared(dpo, r, beta=0.3)
  out = cases.outputs(r)
  h = np.asarray(((out.logprobs - r.ref_logprobs) * batch.mask).sum(2))
  beta_sigma = 0.3 / (1 + np.exp(-0.3 * (h[:, 1] - h[:, 0])))
  sign = np.array([1.0, -1.0])[None, :, None]
  got = gradient_coefficient(dpo, out, batch, cfg)
  # Every token of a pair has the whole coefficient, not its 1/|o|: the weights of a pair add up to
  # one over the pairs.
  np.testing.assert_allclose(got, sign * beta_sigma[:, None, None] * batch.mask / 4, rtol=1e-4)


def test_ppo_is_its_advantage():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(ppo, r)
  check(ppo, out, batch, cfg, batch.advantages)


def test_grpo_is_equation_21():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(grpo, r, beta=0.1)
  check(
    grpo,
    out,
    batch,
    cfg,
    batch.advantages + 0.1 * (jnp.exp(r.ref_logprobs - out.logprobs) - 1),
    atol=1e-6,
  )


def test_grpo_off_policy_is_the_ratio_inside_the_bounds():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(grpo, r)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  a = batch.advantages
  open_ = jnp.where(a > 0, rho < 1.2, rho > 0.8)
  assert 0.2 < np.mean(np.asarray(open_)) < 0.9
  check(grpo, out, batch, cfg, jnp.where(open_, rho * a, 0.0), atol=1e-6)


def test_grpo_weighted_kl():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(grpo, r, beta=0.1, kl_weighted=True, clip_low=0.99, clip_high=99.0)
  w = jnp.exp(out.logprobs - r.old_logprobs)
  expected = w * batch.advantages - 0.1 * w * (out.logprobs - r.ref_logprobs)
  check(grpo, out, batch, cfg, expected, atol=1e-6)


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
  check(rpg, out, batch, cfg, expected, atol=1e-6)


@pytest.mark.parametrize("token_level", [False, True])
def test_gspo_is_the_sequence_ratio_inside_the_bounds(token_level):
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(gspo, r, token_level=token_level, clip_low=0.2, clip_high=0.2)
  log_ratio = ((out.logprobs - r.old_logprobs) * batch.mask).sum(2, keepdims=True) / r.lengths[
    ..., None
  ]
  s, a = jnp.exp(log_ratio), batch.advantages
  check(gspo, out, batch, cfg, jnp.where(jnp.where(a > 0, s < 1.2, s > 0.8), s * a, 0.0), atol=1e-6)


def test_cispo_is_the_capped_ratio():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(cispo, r)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  check(cispo, out, batch, cfg, jnp.minimum(rho, 1.2) * batch.advantages, atol=1e-6)


def test_distill_is_the_log_ratio_to_the_teacher():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(distill, r)
  check(distill, out, batch, cfg, r.ref_logprobs - out.logprobs, atol=1e-6)


def test_target_prob_is_the_sign_until_the_target():
  r = cases.rollouts()
  batch, cfg = prepared(target_prob, r)
  at_start = cases.outputs(r, spread=0.0)
  check(target_prob, at_start, batch, cfg, batch.advantages)
  assert set(np.unique(batch.advantages)) == {-1.0, 0.0, 1.0}
  for side in ("upper", "lower"):
    log_bound = jnp.log(
      jnp.where(jnp.isfinite(batch.extra[side]) & (batch.extra[side] > 0), batch.extra[side], 1.0)
    )
    past = log_bound + (0.01 if side == "upper" else -0.01)
    sign = 1.0 if side == "upper" else -1.0
    got = gradient_coefficient(
      target_prob, cases.replace(at_start, logprobs=r.old_logprobs + past), batch, cfg
    )
    np.testing.assert_array_equal(jnp.where(batch.advantages == sign, got, 0.0), 0.0)


def test_one_update_per_rollout_is_reinforce():
  """Without old log-probs every ratio is exactly 1 and the coefficient is A to the last bit."""
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(grpo, r)
  got = gradient_coefficient(grpo, out, batch, cfg)
  np.testing.assert_array_equal(got, batch.weights * batch.advantages)
  metrics = grpo.loss(out, batch, cfg)[1]
  assert metrics["ratio_max"][0] == 1.0 and metrics["ratio"][0] == metrics["ratio"][1]
  assert metrics["clip_low"][0] == metrics["clip_high"][0] == 0.0


def test_under_gdpo_a_group_of_equal_totals_has_advantages():
  r = cases.rollouts(P=2, G=2)
  components = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
  r = cases.replace(r, components=components, rewards=jnp.where(r.given, 1.0, 0.0))
  for changes, want in (
    (dict(), [1, 1]),
    (dict(advantage="gdpo", reward_weights=(2.0, 1.0)), [0, 1]),
  ):
    batch = cases.prepare(r, cases.settings(**changes))
    np.testing.assert_array_equal(jnp.all(batch.advantages == 0, axis=(1, 2)), np.array(want) == 1)


def test_a_zero_variance_group_has_no_gradient_without_a_kl():
  r = cases.rollouts()
  r = cases.replace(r, rewards=r.rewards.at[1].set(0.7))
  batch, cfg = prepared(grpo, r)
  got = gradient_coefficient(grpo.OBJECTIVE, cases.outputs(r), batch, cfg)
  np.testing.assert_array_equal(got[1], 0.0)
  np.testing.assert_array_equal(adv.flat(r.rewards, r.given), [False, True, False, False])


def test_completions_of_one_token_make_gspo_grpo():
  r = cases.rollouts()
  r = cases.replace(
    r, lengths=jnp.ones_like(r.lengths), given=jnp.zeros_like(r.given).at[..., 0].set(True)
  )
  out = cases.outputs(r)
  batch, _ = prepared(grpo, r)
  bounds = dict(clip_low=0.2, clip_high=0.2)

  def value_and_slope(objective):
    cfg = cases.settings(objective, **bounds)
    return jax.value_and_grad(
      lambda lp: objective.loss(cases.replace(out, logprobs=lp), batch, cfg)[0]
    )(out.logprobs)

  one, two = value_and_slope(grpo), value_and_slope(gspo)
  np.testing.assert_array_equal(one[0], two[0])
  np.testing.assert_array_equal(one[1], two[1])
