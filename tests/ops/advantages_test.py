"""Advantages against closed forms, and GAE and prefix credit against written-out loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives.shared_settings import LARGEST_WEIGHT
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import masked
from grpo_jax.rewards import attempts


def outcome(scores, lengths, L=4):
  """(rewards, given) with one reward on each completion's last token."""
  scores, lengths = jnp.asarray(scores, jnp.float32), jnp.asarray(lengths)
  given = jnp.arange(L) == lengths[..., None] - 1
  return jnp.where(given, scores[..., None], 99.0), given


def test_outcome_supervision_gives_every_token_the_normalised_reward():
  rewards, given = outcome([[1.0, 0.0, 0.0, 3.0]], [[1, 2, 3, 4]])
  a = adv.returns_to_go(adv.group_relative(rewards, given))
  r = np.array([1.0, 0.0, 0.0, 3.0])
  expected = (r - r.mean()) / (r.std(ddof=1) + 1e-4)
  mask = masked.length_mask(jnp.array([[1, 2, 3, 4]]), 4)
  np.testing.assert_allclose(a, expected[None, :, None] * mask, rtol=1e-5)


@pytest.mark.parametrize("scale, deviation", [("group", 2 / 3), ("batch", 128 / 255)])
def test_the_largest_rewards_with_the_largest_weight_are_still_told_apart(scale, deviation):
  largest = attempts.LARGEST * LARGEST_WEIGHT
  scores = [[largest, 0, 0, -largest]] * 64
  a = adv.group_relative(*outcome(scores, [[1, 1, 1, 1]] * 64), scale=scale)
  want = np.array([1, 0, 0, -1]) / np.sqrt(deviation)
  np.testing.assert_allclose(a[:, :, 0], [want] * 64, rtol=1e-5)


def test_process_supervision_sums_the_steps_still_to_come():
  rewards = jnp.array([[[1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 0.0, 0.0]]])
  given = jnp.array([[[True, False, True, False], [False, True, False, False]]])
  R = np.array([1.0, 3.0, 2.0])
  n = (R - R.mean()) / (R.std(ddof=1) + 1e-4)
  a = adv.returns_to_go(adv.group_relative(rewards, given))
  np.testing.assert_allclose(a, [[[n[0] + n[1], n[1], n[1], 0], [n[2], n[2], 0, 0]]], atol=1e-6)


def test_scales_and_baselines():
  scores = np.array([[1.0, 0.0, 0.0, 3.0], [2.0, 2.0, 4.0, 0.0]])
  rewards, given = outcome(scores, np.full((2, 4), 2))

  def last(**how):
    return adv.group_relative(rewards, given, **how)[..., 1]

  centred = scores - scores.mean(1, keepdims=True)
  np.testing.assert_allclose(last(scale="none"), centred, atol=1e-6)
  np.testing.assert_allclose(last(scale="batch"), centred / (scores.std(ddof=1) + 1e-4), rtol=1e-5)
  np.testing.assert_allclose(
    last(scale="advantages"), centred / (centred.std(ddof=1) + 1e-4), rtol=1e-5
  )
  np.testing.assert_allclose(
    last(scale="group", ddof=0, eps=1e-2),
    centred / (scores.std(1, keepdims=True) + 1e-2),
    rtol=1e-5,
  )
  others = (scores.sum(1, keepdims=True) - scores) / 3
  np.testing.assert_allclose(
    last(scale="none", baseline="leave_one_out"), scores - others, atol=1e-6
  )


def test_leave_one_out_without_any_other_gives_zero():
  rewards, given = (
    jnp.array([[[0.9, 0.8], [0.0, 0.0]]]),
    jnp.array([[[True, True], [False, False]]]),
  )
  np.testing.assert_array_equal(adv.group_relative(rewards, given, "leave_one_out", "none"), 0.0)


def test_leave_one_out_leaves_out_the_whole_completion():
  rewards = jnp.array([[[1.0, 5.0], [0.0, 2.0]]])
  given = jnp.array([[[True, True], [False, True]]])
  a = adv.group_relative(rewards, given, baseline="leave_one_out", scale="none")
  np.testing.assert_allclose(a, [[[1 - 2, 5 - 2], [0, 2 - 3]]])


@pytest.mark.parametrize("scale", adv.SCALES)
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_rewards_give_exactly_zero(scale, ddof):
  # In float32 the mean of n equal rewards is often not the reward: for some n and value, in
  # whatever order it adds up.
  off = 0
  for n, value in ((3, 0.7), (5, 0.1), (6, 0.7), (7, 0.7), (7, 0.3), (11, 0.1), (13, 0.9)):
    rewards, given = outcome([[value] * n, [0.1] * (n - 1) + [0.2]], np.full((2, n), 4))
    off += int(masked.masked_mean(rewards[0], given[0]) != rewards[0, 0, 3])
    a = adv.group_relative(rewards, given, scale=scale, ddof=ddof)
    np.testing.assert_array_equal(a[0], 0.0)
    assert np.all(np.asarray(a[1, :, 3]) != 0)
  assert off


@pytest.mark.parametrize("scale", adv.SCALES)
@pytest.mark.parametrize("ddof", [0, 1])
def test_groups_of_one_or_none_give_exactly_zero(scale, ddof):
  rewards = jnp.array([[[0.3, 0.9]], [[0.5, 0.1]]])
  given = jnp.array([[[False, True]], [[False, False]]])
  np.testing.assert_array_equal(adv.group_relative(rewards, given, scale=scale, ddof=ddof), 0.0)
  np.testing.assert_array_equal(
    adv.group_relative(rewards, given, "leave_one_out", "none", ddof), 0.0
  )


def test_flat():
  rewards, given = outcome([[0.7] * 3, [0.7, 0.7, 0.8], [1.0, 1.0, 1.0]], np.full((3, 3), 4))
  np.testing.assert_array_equal(adv.flat(rewards, given), [True, False, True])
  np.testing.assert_array_equal(adv.flat(rewards, given, ddof=3), True)
  np.testing.assert_array_equal(adv.flat(rewards, jnp.zeros_like(given)), True)


def test_a_reward_that_gives_none_takes_no_part_in_gdpo():
  """NaN in a component: the others are normalised among themselves, and it adds 0."""
  components = jnp.array([[[0.0, 1.0], [1.0, jnp.nan], [1.0, 0.0]]])
  got = adv.gdpo(components, jnp.ones(2), jnp.ones((1, 3), bool))
  first = (np.array([0, 1, 1]) - 2 / 3) / (np.std([0, 1, 1], ddof=1) + 1e-4)
  second = np.array([0.5, 0, -0.5]) / (np.std([1, 0], ddof=1) + 1e-4)
  total = first + second
  np.testing.assert_allclose(got[0], (total - total.mean()) / (total.std(ddof=1) + 1e-4), atol=1e-5)


@pytest.mark.parametrize("library", [np, jnp])
def test_totals_are_of_what_was_given(library):
  rewards = library.asarray([[[1.0, 2.0, 99.0], [99.0, 0.5, 99.0]]], dtype=np.float32)
  given = library.asarray([[[True, True, False], [False, True, False]]])
  found = adv.totals(rewards, given)
  np.testing.assert_array_equal(found, [[3.0, 0.5]])
  assert found.dtype == np.float32 and isinstance(found, np.ndarray) == (library is np)


def test_the_same_rewards_in_another_order_have_the_same_total():
  """On the host; added up in float32 they do not."""
  rewards = np.array([[[0.1, 0.2, 0.4], [0.1, 0.4, 0.2], [0.4, 0.1, 0.2]]], np.float32)
  assert len(set((rewards[..., 0] + rewards[..., 1] + rewards[..., 2]).ravel())) > 1
  assert len(set(adv.totals(rewards, np.ones(rewards.shape, bool)).ravel())) == 1


PGL, GIVEN, PG = jnp.ones((3, 4, 5)), jnp.ones((3, 4, 5), bool), jnp.ones((3, 4), int)


@pytest.mark.parametrize(
  "call",
  [
    lambda: adv.totals(PGL, GIVEN[0]),
    lambda: adv.totals(PGL[0], GIVEN[0]),
    lambda: adv.flat(PGL, GIVEN[:1]),
    lambda: adv.flat(PGL[0], GIVEN[0]),
    lambda: adv.group_relative(PGL, GIVEN[..., :1]),
    lambda: adv.group_relative(PGL[0], GIVEN[0]),
    lambda: adv.returns_to_go(jnp.float32(1.0)),
    lambda: adv.sign(PGL, GIVEN[0], 0.1),
    lambda: adv.step_returns(PGL, GIVEN[0], PG > 0),
    lambda: adv.gdpo(PGL, jnp.ones(4), PG > 0),
    lambda: adv.gdpo(PGL, jnp.ones(5), PG[0] > 0),
    lambda: adv.gae(PGL, PGL[0], PGL, PG, 1.0, 1.0),
    lambda: adv.gae(PGL, PGL, PGL, PG[0], 1.0, 1.0),
    lambda: adv.gae(PGL, PGL, PGL[..., :1], PG, 1.0, 1.0),
    lambda: adv.shared_prefix(PGL, PG[0]),
    lambda: adv.prefix_values(PGL, PG, PGL),
    lambda: adv.prefix_credit(PGL, PG, PG[:1]),
  ],
)
def test_shapes_that_do_not_fit_are_refused(call):
  with pytest.raises(AssertionError):
    call()


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(baseline="leave_one_out"), "leave_one_out.*scale='group'.*use scale='none'"),
    (dict(baseline="median"), "baseline='median'"),
    (dict(scale="iqr"), "scale='iqr'"),
  ],
)
def test_bad_settings_are_refused(changes, message):
  rewards, given = outcome([[1.0, 0.0]], [[1, 1]])
  with pytest.raises(SettingError, match=message):
    adv.group_relative(rewards, given, **changes)


def test_sign_is_zero_within_the_margin():
  rewards, given = outcome([[1.0, 0.0, 0.52, 0.48]], [[4, 3, 2, 1]])
  a = adv.sign(rewards, given, margin=0.05)
  np.testing.assert_array_equal(a, [[[1, 1, 1, 1], [-1, -1, -1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]])
  np.testing.assert_array_equal(adv.sign(rewards, given, margin=0.0)[0, :, 0], [1, -1, 1, -1])


def test_gdpo():
  components = np.array(
    [[[1.0, 5.0], [0.0, 9.0], [0.0, 5.0]], [[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]]
  )
  weights = np.array([2.0, 0.5])
  a = adv.gdpo(jnp.asarray(components), jnp.asarray(weights), jnp.ones((2, 3), bool))
  spread = components.std(1, ddof=1, keepdims=True) + 1e-4
  each = (components - components.mean(1, keepdims=True)) / spread
  total = each @ weights
  expected = (total - total.mean()) / (total.std(ddof=1) + 1e-4)
  np.testing.assert_allclose(a, expected, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(a[1], 0.0)


def test_a_completion_without_any_reward_does_not_count_in_gdpos_batch():
  rng = np.random.default_rng(0)
  components = rng.normal(size=(2, 3, 2))
  without = np.concatenate([components, np.full((2, 1, 2), np.nan)], axis=1)
  want = adv.gdpo(jnp.asarray(components), jnp.ones(2), jnp.ones((2, 3), bool))
  got = adv.gdpo(jnp.asarray(without), jnp.ones(2), jnp.ones((2, 4), bool))
  np.testing.assert_allclose(got[:, :3], want, rtol=1e-5)
  np.testing.assert_array_equal(got[:, 3], 0.0)


def test_gae_is_the_written_out_loop():
  rng = np.random.default_rng(0)
  rewards, values = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5))
  lengths, bootstrap = np.array([[5, 3, 1], [0, 2, 4]]), rng.normal(size=(2, 3))
  mask, gamma, lam = np.arange(5) < lengths[..., None], 0.9, 0.7
  rewards = np.where(mask, rewards, 0.0)  # as `ppo.token_rewards` has them
  expected = np.zeros((2, 3, 5))
  for p in range(2):
    for g in range(3):
      n = lengths[p, g]
      v = [*values[p, g, :n], bootstrap[p, g]]
      for t in range(n):
        for k in range(t, n):
          delta = rewards[p, g, k] + gamma * v[k + 1] - v[k]
          expected[p, g, t] += (gamma * lam) ** (k - t) * delta
  a = adv.gae(*map(jnp.asarray, (rewards, values, mask, bootstrap)), gamma, lam)
  np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)


def test_gae_takes_the_next_sampled_token_for_the_next_step():
  """Tokens 1 and 2 were given: V before token 3 follows that of token 0. A reward on a given token
  is the step's before it.
  """
  mask = jnp.array([[1, 0, 0, 1, 0]])
  rewards, values = jnp.array([[1.0, 0, 2.0, 4.0, 0.5]]), jnp.array([[0.3, 9.0, -7.0, 0.6, 5.0]])
  gamma, lam, after = 0.9, 0.7, 0.2
  last = 4.0 + 0.5 + gamma * after - 0.6
  first = 1.0 + 2.0 + gamma * 0.6 - 0.3 + gamma * lam * last
  a = adv.gae(rewards, values, mask, jnp.array([after]), gamma, lam)
  np.testing.assert_allclose(a, [[first, 0, 0, last, 0]], rtol=1e-6)


def test_gae_at_lambda_one_is_the_return_less_the_value():
  rewards, values = jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.2, 0.5, 0.9]])
  a = adv.gae(rewards, values, jnp.ones((1, 3)), jnp.array([0.0]), 1.0, 1.0)
  np.testing.assert_allclose(a, 1.0 - values, rtol=1e-6)


TREE = jnp.array([[[1, 2, 3, 0], [1, 2, 4, 4], [1, 5, 0, 0], [1, 2, 3, 0]]])
TREE_LENGTHS = jnp.array([[3, 4, 2, 3]])
TREE_SCORES = jnp.array([[1.0, 0.0, 0.0, 1.0]])


def test_prefix_values_are_the_means_of_the_samples_through_the_prefix():
  values = adv.prefix_values(TREE, TREE_LENGTHS, TREE_SCORES)
  third = 2.0 / 3.0
  np.testing.assert_allclose(
    values[0],
    [
      [0.5, 0.5, third, 1, 1],
      [0.5, 0.5, third, 0, 0],
      [0.5, 0.5, 0, 0, 0],
      [0.5, 0.5, third, 1, 1],
    ],
  )


def test_prefix_credit_adds_up_to_the_score_less_the_mean_and_falls_where_samples_part():
  credit = adv.prefix_credit(TREE, TREE_LENGTHS, TREE_SCORES)
  np.testing.assert_allclose(credit.sum(2), TREE_SCORES - 0.5, atol=1e-6)
  np.testing.assert_array_equal(credit[0, :, 0], 0.0)
  np.testing.assert_allclose(credit[0, 0], [0, 1 / 6, 1 / 3, 0], atol=1e-6)
  np.testing.assert_allclose(credit[0, 2], [0, -0.5, 0, 0], atol=1e-6)


def test_shared_prefix_stops_at_the_shorter_completion_whatever_the_pads_are():
  tokens = jnp.array([[[7, 0, 0], [7, 0, 0]]])
  np.testing.assert_array_equal(adv.shared_prefix(tokens, jnp.array([[1, 2]]))[0], [[1, 1], [1, 2]])


# One prompt, three completions of 1, 2 and 4 steps: wrong; wrong, right; right, right, wrong,
# wrong.
STEPS = np.zeros((1, 3, 8), bool)
for _g, _ends in enumerate([(7,), (3, 7), (1, 3, 5, 7)]):
  STEPS[0, _g, list(_ends)] = True
STEP_REWARDS = np.zeros((1, 3, 8), np.float32)
STEP_REWARDS[0, 1, 7] = STEP_REWARDS[0, 2, 1] = STEP_REWARDS[0, 2, 3] = 1.0
THREE = np.ones((1, 3), bool)


def test_step_returns_of_hand_worked_groups():
  """To come from steps 0, 1, 2, 3 on: (0), (1, 1), (2, 1, 0, 0); means over all three 1, 2/3, 0, 0."""
  found = np.asarray(adv.step_returns(STEP_REWARDS, STEPS, THREE, "none"))[0]
  np.testing.assert_allclose(found[0], [-1.0] * 8)
  np.testing.assert_allclose(found[1], [0.0] * 4 + [1 / 3] * 4, atol=1e-6)
  np.testing.assert_allclose(found[2], [1.0] * 2 + [1 / 3] * 2 + [0.0] * 4, atol=1e-6)
  rms = np.sqrt((1 + 0 + 1 / 9 + 1 + 1 / 9 + 0 + 0) / (7 - 1))  # of the seven steps
  for scale in ("group", "batch"):
    scaled = adv.step_returns(STEP_REWARDS, STEPS, THREE, scale, eps=0.0)[0]
    np.testing.assert_allclose(scaled, found / rms, atol=1e-6)


def test_step_returns_of_equal_totals_are_no_larger_than_others():
  """Each has one right step of two, another one: the standard deviation of their totals is 0."""
  given = np.zeros((1, 2, 4), bool)
  given[..., [1, 3]] = True
  rewards = np.float32([[[0, 1, 0, 0], [0, 0, 0, 1]]])
  found = np.asarray(adv.step_returns(rewards, given, np.ones((1, 2), bool)))
  assert np.abs(found).max() < 2 and found[0, 1, 3] > 0 > found[0, 0, 3]


def test_wrong_steps_that_are_left_out_earn_nothing():
  """All steps are wrong but one of the last completion: under group_relative the shortest loses
  least.
  """
  rewards = STEP_REWARDS * (np.arange(3) == 2)[None, :, None]
  shortest, longer, _ = np.asarray(adv.step_returns(rewards, STEPS, THREE))[0, :, 0]
  assert shortest == longer < 0
  shortest, longer, _ = np.asarray(adv.returns_to_go(adv.group_relative(rewards, STEPS)))[0, :, 0]
  assert longer < shortest < 0


def test_step_returns_of_one_step_are_the_outcomes_advantage_and_equal_groups_have_none():
  last = np.zeros((2, 3, 8), bool)
  last[..., 7] = True
  rewards = last * np.float32([[0, 1, 0], [0.7, 0.7, 0.7]])[..., None]
  expected = adv.returns_to_go(adv.group_relative(rewards, last))
  np.testing.assert_allclose(
    adv.step_returns(rewards, last, np.ones((2, 3), bool)), expected, atol=1e-6
  )
  assert not np.any(expected[1])
  steps = np.repeat(STEPS[:, 2:], 7, axis=1)
  for equal in np.float32([0.1, 0.3, 0.7]):
    rewards = np.where(steps, equal, np.nan)
    for eps in (1e-4, 0.0):
      assert (adv.step_returns(rewards, steps, np.ones((1, 7), bool), eps=eps) == 0).all()


def test_step_returns_leave_out_completions_that_only_fill_the_batch():
  some = np.array([[True, True, False]])
  found = adv.step_returns(STEP_REWARDS[:, :2], STEPS[:, :2], THREE[:, :2])
  filled = adv.step_returns(STEP_REWARDS * some[..., None], STEPS & some[..., None], some)
  np.testing.assert_allclose(filled[:, :2], found, atol=1e-6)
  assert not np.any(filled[:, 2])


def test_optimal_token_by_hand():
  """Energies 1, 1 and 3: the first token's baseline is (1 * 1 + 3 * 0) / 4, the second's, of the
  sums 2 and 3, is 2 / 5; then one is alone, and has no baseline.
  """
  returns = jnp.array([[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [5.0, 5.0, 5.0]]])
  energy = jnp.array([[[1.0, 1.0, 1.0], [3.0, 0.0, 7.0], [9.0, 9.0, 9.0]]])
  mask = jnp.array([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
  found = adv.optimal_token(returns, energy, mask)
  np.testing.assert_allclose(found[0], [[0.75, 0.6, 1], [-0.25, -0.4, 0], [0, 0, 0]], rtol=1e-6)


def test_optimal_token_of_the_only_completion_is_0():
  mask = jnp.array([[[1.0, 1.0], [0.0, 0.0]]])
  np.testing.assert_array_equal(adv.optimal_token(mask, mask, mask), 0.0)


def test_optimal_token_with_equal_energies_is_the_mean_of_those_alive():
  returns = jnp.broadcast_to(jnp.array([1.0, 0.0, 0.0])[None, :, None], (1, 3, 2))
  mask = jnp.array([[[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]])
  found = adv.optimal_token(returns, mask, mask)
  np.testing.assert_allclose(found[0, :, 0], [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)
  np.testing.assert_allclose(found[0, :2, 1], [0.5, -0.5], rtol=1e-6)


def test_optimal_token_with_energies_of_the_length_is_the_baseline_by_length():
  """Checks the first token of completions of 3, 1 and 2 tokens against OPO's advantage."""
  lengths = jnp.array([[3, 1, 2]])
  mask = (jnp.arange(3) < lengths[..., None]).astype(jnp.float32)
  reward = jnp.array([[1.0, 0.0, 4.0]])
  energy = lengths[..., None] * mask
  found = adv.optimal_token(reward[..., None] * mask, energy, mask)
  np.testing.assert_allclose(found[..., 0], adv.length_weighted(reward, lengths), rtol=1e-6)


def test_optimal_token_has_the_least_variance():
  """Two tokens, pi = (0.8, 0.2), rewards 1 and 0: over all pairs of samples, the baseline of the
  expected energy leaves a smaller mean squared gradient of the logits than the mean's.
  """
  p, reward = np.array([0.8, 0.2]), np.array([1.0, 0.0])
  score = np.eye(2) - p  # gradient of log p by the logits, of each token
  energy = 1 - 2 * p + (p**2).sum()
  np.testing.assert_allclose(energy, (score**2).sum(1))
  b_star = (p * energy * reward).sum() / (p * energy).sum()
  b_mean = (p * reward).sum()

  def second_moment(b):
    return sum(p[i] * ((reward[i] - b) ** 2) * energy[i] for i in range(2))

  assert second_moment(b_star) < second_moment(b_mean)
  for near in (b_star - 1e-3, b_star + 1e-3):
    assert second_moment(b_star) < second_moment(near)
  many = np.array([[0] * 8 + [1] * 2])  # samples in proportion to p
  found = adv.optimal_token(
    jnp.asarray(reward[many], jnp.float32)[..., None],
    jnp.asarray(energy[many], jnp.float32)[..., None],
    jnp.ones((1, 10, 1)),
  )
  np.testing.assert_allclose(found[0, [0, 9], 0], reward - b_star, rtol=1e-5)


def test_gae_takes_a_lambda_for_each_completion():
  rewards = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 5)), jnp.float32)
  values, mask = 0.3 * rewards[..., ::-1], jnp.arange(5) < jnp.array([[5, 3], [2, 5]])[..., None]
  lam = jnp.array([[0.0, 0.4], [0.7, 1.0]])
  found = adv.gae(rewards, values, mask, jnp.zeros((2, 2)), 0.9, lam)
  for index in np.ndindex(2, 2):
    one = adv.gae(rewards[index], values[index], mask[index], jnp.zeros(()), 0.9, float(lam[index]))
    np.testing.assert_allclose(found[index], one, rtol=1e-5, atol=1e-6)
