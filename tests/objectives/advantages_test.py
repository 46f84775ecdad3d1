"""The advantages that a config can name."""

import functools

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import advantages as named
from grpo_jax.objectives import common
from grpo_jax.objectives.base import Needs


def test_step_returns_compare_with_the_completions_that_are_there():
  """Rewards 1 and 0 of two completions: the mean is 1/2, whatever lies in the rows that only fill
  the group.
  """
  r = cases.rollouts(P=1, G=4)
  lengths = jnp.array([[2, 2, 0, 0]])
  last = common.last_token(lengths, 6)
  r = cases.replace(
    r, lengths=lengths, given=last, rewards=last * jnp.array([1.0, 0.0, 9.0, 9.0])[:, None]
  )
  found = named.step_returns(r, scale="none", ddof=1, eps=1e-4)
  np.testing.assert_allclose(found[0, :, 0], [0.5, -0.5, 0.0, 0.0])


def outcomes(rewards, lengths):
  """Rollouts [P, G, 6] with one reward a completion, on its last token."""
  lengths = jnp.array(lengths)
  r = cases.rollouts(P=lengths.shape[0], G=lengths.shape[1])
  last = common.last_token(lengths, 6)
  return cases.replace(
    r, lengths=lengths, given=last, rewards=last * jnp.array(rewards, jnp.float32)[..., None]
  )


def test_opo_weighs_the_baseline_by_length():
  """(1 * 3 + 0 * 1) / 4 = 3/4; the weighted sum of the advantages is 0."""
  r = outcomes([[1, 0, 5], [1, 0, 1]], [[3, 1, 0], [2, 2, 2]])
  found = named.opo(r)
  np.testing.assert_allclose(found[0, 0], [0.25, 0.25, 0.25, 0, 0, 0])
  np.testing.assert_allclose(found[0, 1], [-0.75, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(found[0, 2], 0.0)
  np.testing.assert_allclose(jnp.sum(found, axis=(1, 2)), 0.0, atol=1e-6)
  np.testing.assert_allclose(found[1, :, 0], [1 / 3, -2 / 3, 1 / 3], rtol=1e-6)  # equal lengths


def test_reinforce_pp_counts_every_token_of_the_batch():
  """Returns 1, 1, 1 and 0 on four tokens: mean 3/4, std sqrt(3)/4."""
  r = outcomes([[1, 0]], [[3, 1]])
  found = named.reinforce_pp(r)
  np.testing.assert_allclose(found[0, 0, :3], 3**-0.5, rtol=1e-5)
  np.testing.assert_allclose(found[0, 1, 0], -(3**0.5), rtol=1e-5)
  assert jnp.sum(found != 0) == 4


def test_reinforce_pp_normalises_the_kl_with_the_rewards():
  """With k1 of 1 and 2 on the first completion and 4 on the other, and beta = 1/2, the returns are
  1 - 3/2, 1 - 1 and 0 - 2: mean -5/6, variance 13/18.
  """
  r = outcomes([[1, 0]], [[2, 1]])
  old = jnp.full(r.tokens.shape, -1.0)
  apart = jnp.array([[[1.0, 2, 9, 9, 9, 9], [4.0, jnp.inf, 9, 9, 9, 9]]])
  r = cases.replace(r, old_logprobs=old, ref_logprobs=old - apart)
  expected = (np.array([-0.5, 0, -2]) + 5 / 6) / np.sqrt(13 / 18)
  cfg = cases.settings(advantage="reinforce_pp", beta=0.5, kl_in_reward=True, kl_estimator="k1")
  found = cases.prepare(r, cfg).advantages  # the KL is taken off once
  np.testing.assert_allclose(found[0, [0, 0, 1], [0, 1, 0]], expected, rtol=1e-5)
  assert jnp.sum(found != 0) == 3
  without = cases.settings(advantage="reinforce_pp", beta=0.5)  # its KL is in the loss
  np.testing.assert_allclose(cases.prepare(r, without).advantages, named.reinforce_pp(r))


def test_reinforce_pp_with_a_baseline_first_centres_each_group():
  """In the first group 1/2 on three tokens and -1/2 on one; the other group's rewards are equal."""
  r = outcomes([[1, 0], [7, 7]], [[3, 1], [2, 2]])
  found = named.reinforce_pp_baseline(r)
  values = np.array([0.5] * 3 + [-0.5] + [0.0] * 4)
  expected = (values - values.mean()) / values.std()
  np.testing.assert_allclose(found[0, 0, :3], expected[:3], rtol=1e-5)
  np.testing.assert_allclose(found[0, 1, 0], expected[3], rtol=1e-5)
  np.testing.assert_allclose(found[1, 0, :2], expected[4:6], rtol=1e-5)


@pytest.mark.parametrize("name", ["opo", "maxrl", "reinforce_pp", "reinforce_pp_baseline"])
def test_equal_rewards_give_no_advantage_exactly(name):
  r = outcomes([[0.7] * 8] * 2, [[1, 2, 3, 4, 5, 6, 3, 2], [6, 5, 4, 4, 3, 2, 1, 1]])
  np.testing.assert_array_equal(getattr(named, name)(r), 0.0)


def test_advantages_for_pass_at_k_are_on_every_token():
  r = outcomes([[1, 0.1, 0, 0.4]], [[2, 1, 3, 6]])
  for function, expected in (
    (lambda r: named.maxrl(r), [1 / 0.375 - 1, 0.1 / 0.375 - 1, -1, 0.4 / 0.375 - 1]),
    (lambda r: named.pass_at_k(r, attempts=2), [1, -1 / 3, -1 / 3, -1 / 3]),
    (lambda r: named.pkpo(r, attempts=2), [2, 0, 0, 0]),
  ):
    found = function(r)
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-5)
    inside = np.arange(6) < np.asarray(r.lengths)[..., None]
    np.testing.assert_array_equal(found, np.where(inside, found[..., :1], 0.0))


def test_more_attempts_than_completions_are_refused():
  r = outcomes([[1, 0]], [[2, 1]])
  for function in (named.pass_at_k, named.pkpo):
    with pytest.raises(SettingError, match="attempts=3: pass@3 needs groups .*sampler.group=2"):
      function(r, attempts=3)


@pytest.mark.parametrize(
  "function, expected",
  [
    (named.maxrl, [1, -1, 0]),
    (lambda r: named.pass_at_k(r, attempts=1), [1, -1, 0]),
    (lambda r: named.pkpo(r, attempts=2), [2, 0, 0]),
    (named.opo, [1 / 3, -2 / 3, 0]),
    (named.reinforce_pp, [0.5**0.5, -(2**0.5), 0]),
    (named.reinforce_pp_baseline, [0.5**0.5, -(2**0.5), 0]),
    (
      functools.partial(named.prefix_credit, baseline="mean", scale="none", ddof=0, eps=0.0),
      [0.5, -0.5, 0],
    ),
  ],
)
def test_a_completion_without_a_reward_does_not_count(function, expected):
  """Leaves out the third, of 3 tokens, which is no wrong answer."""
  r = outcomes([[1, 0, 0]], [[2, 1, 3]])
  r = cases.replace(r, given=r.given.at[0, 2].set(False))
  np.testing.assert_allclose(function(r)[0, :, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "rewards, maxrl",
  [
    ([[1, 0], [1, 1]], [-1 / 3, 1 / 3]),  # totals of 1 and 2, of rewards that are all equal
    ([[0.1, 0.2], [0.2, 0.1]], [0, 0]),
  ],
)
def test_completions_with_step_rewards_are_compared_by_their_totals(rewards, maxrl):
  r = outcomes([[0, 0]], [[2, 2]])
  rewards = jnp.zeros((1, 2, 6)).at[0, :, :2].set(jnp.array(rewards, jnp.float32))
  r = cases.replace(r, rewards=rewards, given=rewards > 0)
  np.testing.assert_allclose(named.maxrl(r)[0, :, 0], maxrl, rtol=1e-5)


def test_otb_weighs_by_the_policy_that_sampled():
  """Gives a token of probability 1/2 of two the energy 1/2, and one of 0.9 the energy 0.02."""
  r = outcomes([[0, 1], [1, 1]], [[1, 2], [2, 3]])
  old = jnp.log(jnp.array([[[0.5] * 6, [0.9] * 6]] * 2))
  squares = jnp.array([[[0.5] * 6, [0.82] * 6]] * 2)  # 0.9^2 + 0.1^2
  r = cases.replace(r, old_logprobs=old, old_sum_of_squares=squares)
  found = named.otb(r)
  baseline = 0.02 / (0.5 + 0.02)
  np.testing.assert_allclose(found[0, :, 0], [-baseline, 1 - baseline], rtol=1e-4)
  np.testing.assert_array_equal(found[0, 1, 1:], [1.0, 0.0, 0.0, 0.0, 0.0])  # it is alone there
  np.testing.assert_array_equal(found[1], 0.0)
  with pytest.raises(SettingError, match="old_sum_of_squares"):
    named.otb(cases.replace(r, old_sum_of_squares=None))


def test_otb_does_not_weigh_by_the_rounding_of_certain_tokens():
  """Their energy is 0, which is rounded to more or less than 0."""
  r = outcomes([[1, 0]], [[1, 1]])
  squares = jnp.broadcast_to(jnp.array([1 - 6e-8, 1 + 1.2e-7])[None, :, None], r.tokens.shape)
  r = cases.replace(r, old_logprobs=jnp.zeros(r.tokens.shape), old_sum_of_squares=squares)
  np.testing.assert_array_equal(named.otb(r), 0.0)


def test_otb_compares_returns_where_steps_have_rewards():
  """Compares a step of 1 with two of 1: equal steps, and different returns."""
  r = outcomes([[1, 2]], [[2, 2]])
  given = jnp.array([[[False, True], [True, True]]])
  given = jnp.pad(given, [(0, 0), (0, 0), (0, r.tokens.shape[2] - 2)])
  old = jnp.full(r.tokens.shape, jnp.log(0.5))
  r = cases.replace(
    r,
    rewards=given * 1.0,
    given=given,
    old_logprobs=old,
    old_sum_of_squares=jnp.full(r.tokens.shape, 0.5),
  )
  np.testing.assert_allclose(named.otb(r)[0, :, :2], [[-0.5, 0.0], [0.5, 0.0]], atol=1e-6)


def test_otb_weighs_by_the_square_of_the_weight_for_the_sampler():
  """Doubles the probability of the second completion's token: its energy counts four times."""
  r = outcomes([[1, 0], [1, 0]], [[1, 1], [1, 1]])
  old = jnp.log(jnp.array([[[0.5] * 6, [0.9] * 6]] * 2))
  squares = jnp.array([[[0.5] * 6, [0.82] * 6]] * 2)
  ratio = jnp.array([[[1.0], [2.0]], [[1.0], [9.0]]])
  r = cases.replace(
    r, old_logprobs=old, old_sum_of_squares=squares, sampler_logprobs=old - jnp.log(ratio)
  )
  cfg = dict(advantage="otb", mismatch="token", mismatch_high=3.0)
  found = cases.configured(**cfg).advantages(r)
  baselines = np.array([0.5 / (0.5 + 4 * 0.02), 0.5 / (0.5 + 9 * 0.02)])
  np.testing.assert_allclose(found[:, 0, 0], 1 - baselines, rtol=1e-4)
  np.testing.assert_allclose(found[:, 1, 0], -baselines, rtol=1e-4)
  with pytest.raises(SettingError, match="sampler_logprobs"):
    named.otb(cases.replace(r, sampler_logprobs=None), mismatch="token")


def test_reinforce_pp_divides_by_no_smaller_std_than_its_authors():
  """Has two tokens with rewards 0 and 1e-6: the variance counts as 1e-8."""
  found = named.reinforce_pp(outcomes([[0, 1e-6]], [[1, 1]]))
  np.testing.assert_allclose(found[0, :, 0], [-5e-7 / 1e-4, 5e-7 / 1e-4], rtol=1e-4)


def test_the_optimal_token_baseline_is_not_asked_which_groups_are_flat():
  """Dynamic sampling asks before the old policy's pass."""
  r = outcomes([[1, 0], [1, 1]], [[1, 2], [2, 3]])
  sampled = cases.replace(r, old_logprobs=None, old_sum_of_squares=None)
  found = cases.configured(advantage="otb").flat(sampled)
  np.testing.assert_array_equal(found, [False, True])


def test_the_optimal_token_baseline_asks_for_the_old_policy():
  assert Needs.OLD_POLICY in cases.configured(advantage="otb").needs
  assert Needs.OLD_POLICY not in cases.configured(advantage="opo").needs
