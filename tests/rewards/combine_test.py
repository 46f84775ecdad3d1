"""A batch scored by several weighted rewards."""

import sys
import time

import numpy as np
import pytest
from answered import completion, example

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages
from grpo_jax.rewards import combine
from grpo_jax.run import writer


def _raises(example, completion):
  raise RuntimeError("no such luck")


def _returns(value):
  return lambda example, completion: value


def test_score():
  """Two weighted rewards, one for the whole completion and one for its steps, by hand."""
  group = [completion("a", tokens=4), completion("b", tokens=2)]
  rewards = [
    ("outcome", lambda example, completion: completion.text == "a", 2.0),
    ("process", lambda example, completion: [(0, 1.0), (1, 0.5)], 10.0),
  ]
  scores = combine.score(rewards, [example(), None], [group, group], max_length=5)
  np.testing.assert_array_equal(scores.rewards[0], [[10, 5, 0, 2, 0], [10, 5, 0, 0, 0]])
  np.testing.assert_array_equal(scores.given[0], [[1, 1, 0, 1, 0], [1, 1, 0, 0, 0]])
  np.testing.assert_array_equal(scores.components[0], [[1, 0.75], [0, 0.75]])
  assert (
    not scores.rewards[1].any() and not scores.given[1].any() and not scores.components[1].any()
  )
  assert scores.faults == []
  assert (
    scores.rewards.dtype == scores.components.dtype == np.float32 and scores.given.dtype == bool
  )


def test_a_value_of_zero_is_given():
  scores = combine.score(
    [("zero", _returns(0.0), 1.0)], [example()], [[completion("", tokens=3)]], max_length=3
  )
  np.testing.assert_array_equal(scores.given, [[[False, False, True]]])


def test_what_has_the_weight_zero_is_in_view_and_takes_no_part_in_the_mean():
  group = [completion("right", tokens=3), completion("none", tokens=3)]
  rewards = [
    ("first", lambda example, completion: 0.5 if completion.text == "right" else None, 1.0),
    ("seen", lambda example, completion: [(0, 1.0), (1, 2.0)], 0.0),
  ]
  scores = combine.score(rewards, [example()], [group], max_length=3)
  np.testing.assert_array_equal(scores.given[0], [[0, 0, 1], [0, 0, 0]])
  np.testing.assert_array_equal(scores.components[0], [[0.5, 1.5], [np.nan, 1.5]])


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_reward_is_not_a_reward_of_zero(nothing):
  """Two rewards and four completions: given both, one, the other (a step's) and none."""
  group = [completion(text, tokens=3) for text in ("both", "first", "second", "none")]
  rewards = [
    (
      "first",
      lambda example, completion: 0.5 if completion.text in ("both", "first") else nothing,
      2.0,
    ),
    (
      "second",
      lambda example, completion: [(1, -1.0)] if completion.text in ("both", "second") else nothing,
      1.0,
    ),
  ]
  scores = combine.score(rewards, [example()], [group], max_length=4, on_error=7.0)
  np.testing.assert_array_equal(
    scores.rewards[0], [[0, -1, 1, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
    scores.given[0], [[0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
    scores.components[0], [[0.5, -1], [0.5, np.nan], [np.nan, -1], [np.nan, np.nan]]
  )
  assert scores.faults == []


def test_a_completion_without_a_reward_takes_no_part_in_its_group():
  group = [completion(text, tokens=2) for text in ("right", "wrong", "none")]
  values = {"right": 1.0, "wrong": 0.0, "none": None}
  scores = combine.score(
    [("a", lambda _, c: values[c.text], 1.0)], [example()], [group], max_length=2
  )
  found = advantages.group_relative(scores.rewards, scores.given, scale="none")
  np.testing.assert_array_equal(found, [[[0, 0.5], [0, -0.5], [0, 0]]])  # the mean is 1/2, not 1/3
  assert writer.clean(scores.components) == [[[1.0], [0.0], [None]]]  # as logs write it


@pytest.mark.parametrize(
  "function, message",
  [
    (_raises, "RuntimeError: no such luck"),
    (_returns(float("nan")), "nan, which is no finite reward"),
    (_returns(float("-inf")), "inf, which is no finite reward"),
    (_returns(1e40), "no finite reward"),
    (_returns(10**400), "no finite reward"),
    (_returns(np.float32("nan")), "no finite reward"),
    (_returns([(0, None)]), "None, which is no number"),
    (_returns([None]), "TypeError"),
    (_returns("1"), "'1', which is no number"),
    (_returns([(0, 1.0), (3, 1.0)]), "token 3 of 3"),
    (_returns([(-1, 1.0)]), "token -1 of 3"),
    (_returns([(0.0, 1.0)]), "token 0.0 of 3"),
    (_returns([(0, float("nan"))]), "no finite reward"),
    (_returns([1.0]), "TypeError"),
  ],
)
def test_faults_stop_nothing(function, message):
  """A reward that works for one completion and fails for the other."""

  def bad(example, completion):
    return function(example, completion) if len(completion.tokens) == 3 else 0.5

  rewards = [("fine", _returns(np.float32(1.0)), 1.0), ("bad", bad, 2.0)]
  group = [completion("", tokens=3), completion("", tokens=2)]
  scores = combine.score(rewards, [example()], [group], max_length=4, on_error=-0.75)
  np.testing.assert_array_equal(scores.rewards, [[[0, 0, 1.0 + 2.0 * -0.75, 0], [0, 2.0, 0, 0]]])
  np.testing.assert_array_equal(
    scores.given, [[[False, False, True, False], [False, True, False, False]]]
  )
  np.testing.assert_array_equal(scores.components, [[[1.0, -0.75], [1.0, 0.5]]])
  (fault,) = scores.faults
  assert fault[:3] == (0, 0, "bad") and message in fault.message


def test_a_reward_that_fails_on_everything_ends_the_run():
  rewards = [("fine", _returns(1.0), 1.0), ("bad", lambda example, completion: [][0], 1.0)]
  empty = [completion("", tokens=0)] * 2  # of a prompt that only fills the batch
  groups = [[completion("", tokens=3), completion("", tokens=2)], empty]
  faults = combine.score(rewards, [example(), None], groups, max_length=4).faults
  with pytest.raises(
    SettingError, match="'bad' failed on all 2 completions of a step, first: IndexError: list index"
  ):
    combine.check_some_worked(faults, 2)
  combine.check_some_worked(faults, 3)
  assert not combine.score(rewards, [None], [empty], max_length=4).faults


def test_an_error_that_is_no_text_is_a_fault():
  def odd(example, completion):
    if len(completion.tokens) == 1:
      raise ValueError(10**5000)
    return 1.0

  group = [completion("", tokens=1), completion("", tokens=2)]
  (fault,) = combine.score([("odd", odd, 1.0)], [example()], [group], max_length=4).faults
  assert fault == (0, 0, "odd", "ValueError: ")


def test_sys_exit_in_a_reward_is_a_fault():
  def leaves(example, completion):
    return sys.exit(0) if len(completion.tokens) == 1 else 1.0

  group = [completion("", tokens=1), completion("", tokens=2)]
  (fault,) = combine.score([("leaves", leaves, 1.0)], [example()], [group], max_length=4).faults
  assert fault == (0, 0, "leaves", "ValueError: called sys.exit(0)")


def test_a_late_reward_is_a_fault_and_one_that_is_always_late_ends_the_run():
  def slow(example, completion):
    time.sleep(60 if len(completion.tokens) < 3 else 0)
    return 1.0

  group = [completion("", tokens=n) for n in (1, 2, 3, 4)]
  scores = combine.score([("slow", slow, 1.0)], [example()], [group], max_length=4, deadline=0.3)
  assert [f.message for f in scores.faults] == ["took longer than 0.3 s (rewards.deadline)"] * 2
  start, group = time.perf_counter(), [completion("", tokens=1)] * 1000
  with pytest.raises(
    SettingError, match="'slow' took longer than 0.3 s .* on each of the first 5 completions"
  ):
    combine.score([("slow", slow, 1.0)], [example()], [group], max_length=4, deadline=0.3)
  assert time.perf_counter() - start < 30


def test_interrupts_are_not_swallowed():
  def interrupted(example, completion):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    combine.score([("a", interrupted, 1.0)], [example()], [[completion("")]], max_length=5)


def test_a_reward_that_is_known_is_not_called_again():
  def never(example, completion):
    raise AssertionError("called")

  rewards = [("elsewhere", never, 2.0), ("one", _returns(1.0), 0.5)]
  group = [completion("", tokens=2), completion("", tokens=3)]
  known = {"elsewhere": [[([(0, 1.0), (1, 0.25)], ""), ([], "ValueError: no")]]}
  scores = combine.score(rewards, [example()], [group], 3, on_error=-1.0, known=known)
  np.testing.assert_array_equal(scores.rewards[0], [[2.0, 1.0, 0.0], [0.0, 0.0, -1.5]])
  np.testing.assert_array_equal(scores.components[0], [[0.625, 1.0], [-1.0, 1.0]])
  assert scores.faults == [combine.Fault(0, 1, "elsewhere", "ValueError: no")]


def test_the_shares_of_several_processes_are_put_together():
  """Each scores its own completions, and what they gave is what one process would have given to
  all.
  """

  def odd(example, completion):
    values = {1: None, 2: 0.5, 3: [(0, 1.0), (2, -1.0)], 4: [][:1]}
    if len(completion.tokens) == 5:
      raise ValueError("five")
    return values[len(completion.tokens)]

  rewards, examples = [("odd", odd, 2.0), ("one", _returns(1.0), 0.5)], [example(), example()]
  groups = [[completion("", tokens=n) for n in of] for of in ((5, 1, 2), (3, 4, 5))]
  whole = combine.score(rewards, examples, groups, max_length=6)
  own = [[[(p + g) % 2 == share for g in range(3)] for p in range(2)] for share in range(2)]
  shares = [
    combine.given_only(
      combine.score(
        rewards, examples, [[c if o else None for c, o in zip(*of)] for of in zip(groups, mine)], 6
      )
    )
    for mine in own
  ]
  for sent in (shares, shares[::-1]):
    joined = combine.join(sent, whole.given.shape, 2)
    for got, want in zip(joined[:3], whole[:3], strict=True):
      assert got.dtype == want.dtype
      np.testing.assert_array_equal(got, want)
    assert joined.faults == whole.faults and len(whole.faults) == 2
