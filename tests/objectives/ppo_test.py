"""PPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import (
  common,
  ppo,
)
from grpo_jax.objectives.coefficients import gradient_coefficient
from grpo_jax.ops import advantages, masked
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_ppo_rewards_returns_and_bootstrap():
  """One completion cut off and one that stopped, by a written-out loop."""
  r = cases.rollouts(P=1, G=2, L=6, seed=3)
  r = cases.replace(r, lengths=jnp.array([[6, 3]]), ended=jnp.array([[0, 1]]))
  r = cases.replace(r, given=common.last_token(r.lengths, 6))
  cfg = cases.settings(ppo, beta=0.2, gamma=0.9, lam=0.8, whiten=False)
  batch = cases.prepare(r, cfg)
  for g, n, cut in ((0, 6, True), (1, 3, False)):
    v = np.asarray(r.old_values[0, g], np.float64)
    reward = -0.2 * np.asarray(r.old_logprobs - r.ref_logprobs, np.float64)[0, g]
    reward[n - 1] += float(r.rewards[0, g, n - 1])
    following = [*v[1:n], v[n - 1] if cut else 0.0]
    a = 0.0
    for t in reversed(range(n)):
      a = reward[t] + 0.9 * following[t] - v[t] + 0.9 * 0.8 * a
      np.testing.assert_allclose(batch.advantages[0, g, t], a, rtol=1e-5)
      np.testing.assert_allclose(batch.extra["returns"][0, g, t], a + v[t], rtol=1e-6, atol=1e-9)


def test_an_episode_is_over_at_its_limits():
  """Its reward is what reaching a limit costs; the critic's own value would hide it."""
  r = cases.rollouts(P=1, G=2, L=4)
  given, zeros = common.last_token(r.lengths, 4), jnp.zeros_like(r.rewards)
  r = cases.replace(r, given=given, rewards=zeros, ended=jnp.array([[0, 1]]))
  r = cases.replace(r, sampled=jnp.ones(r.tokens.shape, bool))
  batch = cases.prepare(r, cases.settings(ppo, beta=0.0, gamma=1.0, lam=1.0))
  np.testing.assert_allclose(batch.extra["returns"], 0.0, atol=1e-6)


def test_the_targets_of_ppo_s_critic_come_from_advantages_before_they_are_whitened():
  r = cases.rollouts()
  whitened, plain = (
    cases.prepare(r, cases.settings(ppo, whiten=whiten)) for whiten in (True, False)
  )
  np.testing.assert_array_equal(whitened.extra["returns"], plain.extra["returns"])
  mean, std = (
    np.mean(plain.advantages[plain.mask > 0]),
    np.std(plain.advantages[plain.mask > 0], ddof=1),
  )
  np.testing.assert_allclose(
    whitened.advantages, (plain.advantages - mean) / std * plain.mask, atol=1e-5
  )


def test_no_reward_is_not_a_reward_of_0():
  """Leaves it out of the policy, the critic and the mean of what is whitened."""
  r = cases.rollouts()
  batch, cfg = prepared(ppo, cases.replace(r, given=r.given.at[:, 3].set(False)))
  found = gradient_coefficient(ppo.OBJECTIVE, cases.outputs(r), batch, cfg)
  assert np.abs(found[:, :3]).max() > 0
  np.testing.assert_array_equal(found[:, 3], 0.0)
  np.testing.assert_array_equal(batch.weights[:, 3], 0.0)
  np.testing.assert_allclose(masked.masked_mean(batch.advantages, batch.mask), 0.0, atol=1e-6)
  np.testing.assert_array_equal(batch.mask[:, 3], 0.0)


def test_ppo_value_loss_is_the_larger_of_clipped_and_not():
  values, old, returns = jnp.array([1.0, 0.1, -1.0]), jnp.zeros(3), jnp.array([2.0, 2.0, 0.0])
  np.testing.assert_allclose(
    ppo.value_loss(values, old, returns, 0.2), [1.62, 1.805, 0.5], rtol=1e-6
  )
  np.testing.assert_allclose(
    ppo.value_loss(values, old, returns, 0.0), [0.5, 1.805, 0.5], rtol=1e-6
  )


def test_ppo_with_group_baseline_takes_the_mean_off_the_score_only():
  r = cases.rollouts()
  cfg = cases.settings(ppo, group_baseline=True)
  rewards = ppo.token_rewards(r, cfg)
  scores = advantages.totals(r.rewards, r.given)
  np.testing.assert_allclose(rewards.sum(2), scores - scores.mean(1, keepdims=True), atol=1e-6)


def test_ppo_is_not_asked_about_settings_of_grpo():
  cfg = cases.section(ppo)
  assert not {"baseline", "scale", "kl_in_reward", "kl_weighted", "advantage"} & set(cfg)
  ppo.check(cfg)  # reads none of them


def test_ppo_is_its_advantage():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(ppo, r)
  check(ppo, out, batch, cfg, batch.advantages)


def test_vapo_has_a_lambda_by_length_and_one_for_the_critic():
  """alpha = 0.5: lambda is 0 up to two tokens, 1/3 with three and 2/3 with six."""
  np.testing.assert_allclose(
    ppo.lam_by_length(jnp.array([1, 2, 3, 6]), 0.5), [0, 0, 1 / 3, 2 / 3], rtol=1e-6
  )
  r = cases.rollouts()
  vapo = cases.prepare(r, cases.settings(ppo, lam_length=0.5, critic_lam=1.0, whiten=False))
  ones = cases.prepare(r, cases.settings(ppo, lam=1.0, whiten=False))
  np.testing.assert_array_equal(vapo.extra["returns"], ones.extra["returns"])
  for length, lam in ((2, 0.0), (6, 2 / 3)):
    plain = cases.prepare(r, cases.settings(ppo, lam=lam, whiten=False))
    there = np.asarray(r.lengths) == length
    assert there.any()
    np.testing.assert_allclose(vapo.advantages[there], plain.advantages[there], atol=1e-6)


def test_the_critic_s_lambda_follows_the_policy_s():
  c = ppo.settings()
  c.lam = 0.7
  assert c.critic_lam == 0.7


def test_imitation_adds_the_log_likelihood_of_right_completions():
  """A mean over their tokens, with a mean over all tokens for the rest."""
  r = cases.rollouts()
  out = cases.outputs(r)
  right = np.asarray(advantages.totals(r.rewards, r.given)) > 0.5
  with_it, without = (prepared(ppo, r, imitation=i, aggregation="token_mean") for i in (0.1, 0.0))
  pull = [gradient_coefficient(ppo.OBJECTIVE, out, *x) for x in (with_it, without)]
  mask = np.asarray(with_it[0].mask)
  chosen = mask * right[..., None]
  assert 0 < chosen.sum() < mask.sum()
  np.testing.assert_allclose(pull[0] - pull[1], 0.1 * chosen / chosen.sum(), atol=1e-9)


def test_values_returns_and_their_error_are_reported_apart():
  _, _, batch, out = cases.case("ppo")
  cfg = cases.settings(ppo, value_clip=0.0)
  found, mask = ppo.loss(out, batch, cfg)[1], np.asarray(batch.mask)
  values, returns = np.asarray(out.values), np.asarray(batch.extra["returns"])
  for name, want in (
    ("value", values),
    ("return", returns),
    ("value_loss", (values - returns) ** 2 / 2),
  ):
    np.testing.assert_allclose(
      found[name], ((want * mask).sum(), mask.sum()), rtol=1e-4, err_msg=name
    )
