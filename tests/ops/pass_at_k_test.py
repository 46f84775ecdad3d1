"""Advantages for pass@k: by hand, and exactly, over all groups that a policy can sample.

The policy answers rightly with probability p = sigmoid(theta), so grad log pi by theta is 1 - p of
a right answer and -p of a wrong one, and that of pass@k = 1 - (1 - p)^k is k (1 - p)^k p.
"""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import advantages, pass_at_k

REAL = jnp.ones((1, 4), bool)


def expected_update(advantages_of, n, p):
  """Returns the mean over all groups of n answers of the mean of A grad log pi, in float64."""
  total = 0.0
  for right in itertools.product((0, 1), repeat=n):
    chance = math.prod(p if r else 1 - p for r in right)
    a = np.asarray(advantages_of(jnp.array([right])), np.float64)[0]
    total += chance * np.mean(a * np.where(right, 1 - p, -p))
  return total


def slope(k, p):
  """Returns the gradient of pass@k."""
  return k * (1 - p) ** k * p


def maxrl(right):
  return pass_at_k.maxrl(right.astype(jnp.float32), jnp.ones(right.shape, bool))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_maxrl_adds_the_gradients_of_pass_at_k_up_to_n_minus_1(n, p):
  series = sum(slope(k, p) / k for k in range(1, n))
  np.testing.assert_allclose(expected_update(maxrl, n, p), series, rtol=1e-5, atol=1e-7)


def test_maxrl_of_many_is_the_gradient_of_log_p():
  """Adds up over the number of right ones of 200 answers with p = 0.3."""
  n, p, total = 200, 0.3, 0.0
  for right in range(n + 1):
    chance = math.comb(n, right) * p**right * (1 - p) ** (n - right)
    a = np.asarray(maxrl(jnp.arange(n)[None] < right), np.float64)[0]
    total += chance * np.mean(a * np.where(np.arange(n) < right, 1 - p, -p))
  np.testing.assert_allclose(total, 1 - p, rtol=1e-5)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_maxrl_without_its_0_for_all_wrong_groups_is_of_order_n(p):
  """Takes -1 in a group of wrong answers, which with the mean as the baseline is r / mean - 1."""
  series = sum(slope(k, p) / k for k in range(1, 5))
  shifted = expected_update(lambda right: jnp.where(right.any(), maxrl(right), -1.0), 4, p)
  np.testing.assert_allclose(shifted, series, rtol=1e-5)


def test_maxrl_by_hand():
  rewards = jnp.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.5, 1.5, 7.0, 1.0]])
  real = jnp.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]], bool)
  expected = [[1, -1, -1, 1], [0, 0, 0, 0], [-0.5, 0.5, 0, 0]]
  np.testing.assert_allclose(pass_at_k.maxrl(rewards, real), expected, rtol=1e-6)


def test_maxrl_counts_a_negative_reward_as_none():
  """Taken as it is, the second row has a mean of 0.005 and advantages of 199 and -199."""
  rewards = jnp.array([[1.0, -1.0, 0.0, 0.0], [1.0, -0.99, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0]])
  real = jnp.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], bool)
  expected = [[3, -1, -1, -1], [1, -1, 0, 0], [0, 0, 0, 0]]
  np.testing.assert_allclose(pass_at_k.maxrl(rewards, real), expected, rtol=1e-6)


def test_maxrl_of_two_is_leave_one_out():
  """Where one of two is right, the mean is 1/2: (1 - 1/2) / (1/2) = 1, as 1 - 0."""
  rewards = jnp.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
  given = jnp.ones((3, 2, 1), bool)
  other = advantages.group_relative(rewards[..., None], given, "leave_one_out", "none")
  found = pass_at_k.maxrl(rewards, jnp.ones((3, 2), bool))
  np.testing.assert_allclose(found, other[..., 0], rtol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("n, k", [(1, 1), (3, 1), (4, 2), (5, 3), (4, 4)])
def test_the_expected_update_of_pkpo_is_the_gradient_of_pass_at_k(n, k, p):
  found = expected_update(lambda r: pass_at_k.pkpo(r > 0, jnp.ones(r.shape, bool), k), n, p)
  np.testing.assert_allclose(found, slope(k, p), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("n, k", [(3, 1), (4, 2), (5, 3)])
def test_the_paper_s_rewards_without_a_baseline_have_the_same_expected_update(n, k, p):
  def without(right):
    wrong = n - right.sum(axis=1, keepdims=True)
    fail = [math.comb(int(w) - 1, k - 1) / math.comb(n - 1, k - 1) if w else 0 for w in wrong[:, 0]]
    return k * jnp.where(right > 0, 1.0, 1.0 - jnp.array(fail)[:, None])

  np.testing.assert_allclose(expected_update(without, n, p), slope(k, p), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("n, k", [(3, 1), (4, 2), (3, 3)])
def test_the_expected_updates_of_three_answers_are_gradients_too(n, k):
  """A softmax over three answers, of which the first two are right: by each logit, PKPO's is the
  gradient of pass@k, and MaxRL's the sum of those of pass@j / j for j below n.
  """
  p = np.array([0.3, 0.15, 0.55])
  score = np.eye(3) - p  # gradient of log p of each answer by the logits
  of_right = score[:2].T @ p[:2]  # that of the chance to be right, 0.45
  updates = {"pkpo": np.zeros(3), "maxrl": np.zeros(3)}
  for answers in itertools.product(range(3), repeat=n):
    right = jnp.array([[answer < 2 for answer in answers]])
    found = {"pkpo": pass_at_k.pkpo(right, jnp.ones((1, n), bool), k), "maxrl": maxrl(right)}
    for name, a in found.items():
      update = np.asarray(a, np.float64)[0] @ score[list(answers)] / n
      updates[name] += math.prod(p[list(answers)]) * update
  np.testing.assert_allclose(updates["pkpo"], k * p[2] ** (k - 1) * of_right, atol=1e-7)
  series = sum(p[2] ** (j - 1) for j in range(1, n))
  np.testing.assert_allclose(updates["maxrl"], series * of_right, atol=1e-7)


@pytest.mark.parametrize("n, k", [(4, 2), (5, 3), (3, 3)])
def test_pkpo_is_what_an_answer_adds_to_the_sets_that_it_is_in(n, k):
  for right in itertools.product((0, 1), repeat=n):
    expected = np.zeros(n)
    for chosen in itertools.combinations(range(n), k):
      for i in chosen:
        others = [right[j] for j in chosen if j != i]
        expected[i] += n / math.comb(n, k) * (max(right[i], *others) - max(others))
    found = pass_at_k.pkpo(jnp.array([right], bool), jnp.ones((1, n), bool), k)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-7)


def test_pkpo_of_one_attempt_is_the_reward():
  right = jnp.array([[True, False, True, False]])
  np.testing.assert_array_equal(pass_at_k.pkpo(right, REAL, 1), [[1, 0, 1, 0]])


def test_pass_at_k_by_hand():
  """n = 4, c = 1, k = 2: C(3,2)/C(4,2) = 1/2 fail, s = 1/2, of the others C(2,1)/C(3,1) = 2/3."""
  right = jnp.array([[True, False, False, False]])
  found = pass_at_k.pass_at_k(right, REAL, 2)
  np.testing.assert_allclose(found, [[1, -1 / 3, -1 / 3, -1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_adds_up_to_0_and_is_0_where_nothing_can_be_told(k):
  for right in itertools.product((False, True), repeat=4):
    found = pass_at_k.pass_at_k(jnp.array([right]), REAL, k)
    np.testing.assert_allclose(jnp.sum(found), 0.0, atol=1e-6)
    wrong = 4 - sum(right)
    assert bool(jnp.any(found != 0)) == (sum(right) > 0 and wrong >= k)


def test_pass_at_1_is_grpo_with_ddof_0():
  right = jnp.array([[True, False, True, True]])
  rewards = right.astype(jnp.float32)[..., None]
  other = advantages.group_relative(rewards, jnp.ones((1, 4, 1), bool), ddof=0, eps=0.0)
  np.testing.assert_allclose(pass_at_k.pass_at_k(right, REAL, 1), other[..., 0], rtol=1e-5)


@pytest.mark.parametrize("name", ["pass_at_k", "pkpo"])
def test_completions_that_only_fill_the_batch_do_not_count(name):
  function = getattr(pass_at_k, name)
  small = function(jnp.array([[True, False, False]]), jnp.ones((1, 3), bool), 2)
  right = jnp.array([[True, True, False, False, True]])
  filled = function(right, jnp.array([[1, 0, 1, 1, 0]], bool), 2)
  np.testing.assert_allclose(filled[0, [0, 2, 3]], small[0], rtol=1e-6)
  np.testing.assert_array_equal(filled[0, [1, 4]], 0.0)
  few = jnp.array([[1, 0, 0, 0, 0]], bool)  # fewer than k
  np.testing.assert_array_equal(function(right, few, 2), 0.0)
