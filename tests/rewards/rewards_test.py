import functools
import sys
import time
from fractions import Fraction

import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages
from grpo_jax.rewards import choice, combine, format, length, math, steps
from grpo_jax.run import writer
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example


def _example(answer="72", **meta):
  return Example("?", f"#### {answer}", answer, meta)


def _completion(text, ended=STOPPED, tokens=5, step_ends=()):
  return Completion(text, list(range(tokens)), ended, list(step_ends))


@pytest.mark.parametrize(
  "text, value",
  [
    ("72", 72),
    (" 72 ", 72),
    ("72.0", 72),
    ("72.", 72),
    ("72.50", Fraction(145, 2)),
    (".5", Fraction(1, 2)),
    ("0.10", Fraction(1, 10)),
    ("-5", -5),
    ("+5", 5),
    ("\u22125", -5),
    ("$1,234.50", Fraction(2469, 2)),
    ("-$5", -5),
    ("$-5", -5),
    ("$ 5", 5),
    ("5 \u20ac", 5),
    ("50%", 50),
    ("1,000,000", 1_000_000),
    ("007", 7),
    ("-0", 0),
    ("9007199254740993", 9007199254740993),
  ],
)
def test_number(text, value):
  assert math.number(text) == value


@pytest.mark.parametrize(
  "text",
  [
    "",
    ".",
    "-",
    "$",
    "%",
    "1,00",
    "10,0000",
    ",1",
    "1 000",
    "--5",
    "-$-5",
    "72 apples",
    "48/2",
    "1e3",
    "\u0663",
  ]
  + ["0x1f", "nan", "inf", "1_000", "5\n6", "9" * 65, "2+2", "1.2.3"],
)
def test_not_a_number(text):
  assert math.number(text) is None


@pytest.mark.parametrize(
  "answer, text, reward",
  [
    ("72", "48 / 2 = 24\n#### 72", 1.0),
    ("72", "#### 72.00", 1.0),
    ("1,000", "#### $1000", 1.0),
    ("72", "#### 7\n#### 72", 1.0),
    ("72", "#### 72\n#### 7", 0.0),
    ("72", "####72\nand so on", 1.0),
    ("72", "72", 0.0),
    ("72", "####\n72", 0.0),
    ("72", "#### 72 73", 0.0),
    ("72", "#### about 72", 0.0),
    ("72", "#### 144/2", 0.0),
    ("0.3", "#### 0.30000000000000001", 0.0),
    ("9007199254740993", "#### 9007199254740992", 0.0),
    ("-3", "#### 3", 0.0),
  ],
)
def test_answer_correct(answer, text, reward):
  assert math.answer_correct(_example(answer), _completion(text)) == reward


def test_an_answer_that_was_cut_off_does_not_count():
  assert math.answer_correct(_example("7"), _completion("#### 7", TRUNCATED)) == 0.0
  assert math.answer_correct(_example("7"), _completion("#### 7\nand", TRUNCATED)) == 1.0


@pytest.mark.parametrize(
  "text, answer",
  [
    ("work\n#### 72 \nmore", "72"),
    ("#### 7 #### 72", "72"),
    ("####\n72", ""),
    ("72", None),
    ("### 72", None),
  ],
)
def test_what_stands_after_the_mark(text, answer):
  assert math.after_mark(text) == answer


def test_the_example_needs_a_number():
  with pytest.raises(ValueError, match="'blue' is no number"):
    math.answer_correct(_example("blue"), _completion("#### 7"))


@pytest.mark.parametrize(
  "text",
  [
    "B",
    "b",
    " B\n",
    "(b)",
    "(B)",
    "[b]",
    "B)",
    "B.",
    "(B).",
    "B).",
    "work\n#### B",
    "A or B?\n#### (b)",
    "#### A\n#### B",
  ],
)
def test_choice_correct(text):
  assert choice.choice_correct(_example("B"), _completion(text)) == 1.0
  assert choice.choice_correct(_example("(b)."), _completion(text)) == 1.0


@pytest.mark.parametrize(
  "text",
  [
    "",
    "A",
    "C",
    "BB",
    "Both",
    "Bern",
    "B because",
    "The answer is B",
    "A, B",
    "A B",
    "AB",
    "B) Bern",
    "B, I think",
    "B!",
  ]
  + [
    "(B",
    "[B)",
    "B]",
    "((B))",
    "B..",
    "B\nA",
    "A\nB",
    "**B**",
    "\u0412",
    "\uff22",
    "8",
    "#### B\n#### A",
    "#### B C",
  ]
  + ["#### Because", "####\nB", "B\n####", "B ####", "B\n#### C", "#### 1"],
)
def test_a_choice_is_never_found_within_a_text(text):
  assert choice.choice_correct(_example("B"), _completion(text)) == 0.0


def test_letters_are_of_the_alphabet():
  """Letters that python's `re` takes for k and s where it ignores case."""
  assert choice.choice_correct(_example("K"), _completion("\u212a")) == 0.0
  assert choice.choice_correct(_example("S"), _completion("\u017f")) == 0.0


def test_a_choice_that_was_cut_off_does_not_count():
  for text, reward in (
    ("B", 0.0),
    ("#### B", 0.0),
    ("#### B\n", 1.0),
    ("B\n", 0.0),
    ("#### A\n#### B", 0.0),
  ):
    assert choice.choice_correct(_example("B"), _completion(text, TRUNCATED)) == reward


def test_the_example_needs_a_letter():
  with pytest.raises(ValueError, match="'blue' is not the letter of an option"):
    choice.choice_correct(_example("blue"), _completion("B"))


@pytest.mark.parametrize(
  "text, ended, reward",
  [
    ("48 / 2 = 24\n#### 24", STOPPED, 1.0),
    ("48 / 2 = 24\n\n#### $1,000\n", STOPPED, 1.0),
    ("48 / 2 = 24\n#### 24", TRUNCATED, 0.0),
    ("#### 24", STOPPED, 0.0),
    ("work\n#### 24\n#### 24", STOPPED, 0.0),
    ("work\n#### 24\nmore", STOPPED, 0.0),
    ("work\n#### many", STOPPED, 0.0),
    ("work #### 24", STOPPED, 0.0),
    ("48 / 2 = 24\n24", STOPPED, 0.0),
    ("work\nso #### 24", STOPPED, 0.0),
    ("", STOPPED, 0.0),
  ],
)
def test_well_formed(text, ended, reward):
  assert math.well_formed(_example(), _completion(text, ended)) == reward


@pytest.mark.parametrize(
  "text, reward",
  [
    ("Ann has 48 / 2 = 24\nIn all 48+24=$72.\n#### 72", 1.0),
    ("Ann has 24\n#### 24", 0.0),
    ("Ann has 48 / 2 = 24\nso\n#### 24", 0.0),
    ("48 / 2 = 24", 0.0),
  ],
)
def test_worked(text, reward):
  assert format.worked(_example(), _completion(text)) == reward


@pytest.mark.parametrize(
  "text, reward",
  [
    ("<think>a\nb</think>\n<answer>1</answer>", 1.0),
    ("<think></think><answer></answer>\n", 1.0),
    ("so <think>a</think><answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</answer> so", 0.0),
    ("<think>a</think><think>b</think><answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</answer><answer>2</answer>", 0.0),
    ("<answer>1</answer><think>a</think>", 0.0),
    (" \n\u2003<think>a</think>\u00a0<answer>1</answer>\t", 1.0),
    ("<think>a</think>, <answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</think></answer>", 0.0),
    ("<think>a<answer>1</think></answer>", 0.0),
    ("<think>a<answer></think>1</answer>", 0.0),
    ("</think><think><answer>1</answer>", 0.0),
    ("<think>a <th</think><answer>ink> 1</answer>", 1.0),  # no tag across the two blocks
    ("", 0.0),
  ],
)
def test_think_tags(text, reward):
  assert format.think_tags(_example(), _completion(text)) == reward
  assert format.think_tags(_example(), _completion(text, TRUNCATED)) == 0.0


@pytest.mark.parametrize(
  "text",
  [
    "<think></think>" * 21_000,
    "<think></think><answer>" * 14_000,
    "<think>" + "</think> <answer>" * 19_000,
    "<think>" + "</think>" + " " * 320_000,
    "<think>" + "<" * 320_000 + "</answer>",
  ],
)
def test_think_tags_takes_no_longer_than_the_text(text):
  """A pattern that tries every pair of tags took 74 seconds for texts of this length."""
  start = time.perf_counter()
  assert format.think_tags(_example(), _completion(text)) == 0.0
  assert time.perf_counter() - start < 1.0


def test_steps_correct():
  example = _example("72", results=[24, 72])

  def check(text, ends):
    return steps.steps_correct(example, _completion(text, tokens=ends[-1] + 1, step_ends=ends))

  assert check("Ann has 48 / 2 = 24\nIn all 48+24=$72 pens.\n#### 72", [4, 9, 12]) == [
    (4, 1.0),
    (9, 1.0),
    (12, 1.0),
  ]
  # A wrong step, its honest consequence, and a wrong answer.
  assert check("48 / 2 = 26\n48 + 26 = 74\n#### 74", [4, 9, 12]) == [(4, 0.0), (9, 0.0), (12, 0.0)]
  # A wrong step and a right one after it.
  assert check("48 / 2 = 26\n48 + 24 = 72\n#### 72", [4, 9, 12]) == [(4, 0.0), (9, 1.0), (12, 1.0)]
  # A step left out, one too many, and the answer alone.
  assert check("48 + 24 = 72\n#### 72", [4, 9]) == [(4, 0.0), (9, 0.0)]
  assert check("48 / 2 = 24\n48 + 24 = 72\n72 + 0 = 72\n#### 72", [1, 2, 3, 4]) == [
    (1, 1.0),
    (2, 1.0),
    (3, 0.0),
    (4, 0.0),
  ]
  assert check("#### 72", [3]) == [(3, 0.0)]
  # The stop token alone.
  assert check("", [0]) == [(0, 0.0)]
  with pytest.raises(ValueError, match="3 lines and 2 steps: .* use data.steps='line'"):
    check("48 / 2 = 24\n48 + 24 = 72\n#### 72", [4, 12])


@pytest.mark.parametrize(
  "line",
  [
    "20 + 3 = 24",
    "24",
    "= 24",
    "24 = 24",
    "24 / 0 = 24",
    "0 / 0 = 24",
    "2 + 4 * 6 = 24",
    "20 + 4 = 24 + 1",
    "120 - 96 = 24 = 25",
  ]
  + ["1.20 + 4 = 24", "7 / 2 = 3"],
)
def test_a_step_needs_a_true_equation(line):
  completion = _completion(line, step_ends=[4])
  assert steps.steps_correct(_example(results=[24]), completion) == [(4, 0.0)]
  assert steps.steps_correct(_example(results=[3]), completion) == [(4, 0.0)]


def test_overlong():
  def reward(tokens):
    return length.overlong(_example(), _completion("", tokens=tokens), max_length=100, buffer=20)

  assert [reward(n) for n in (1, 80, 85, 90, 100, 120)] == [0, 0, -0.25, -0.5, -1, -1]
  with pytest.raises(SettingError, match="buffer=0: use 1 to max_length=100"):
    length.overlong(_example(), _completion(""), max_length=100, buffer=0)
  # a fault of every completion would be one of none
  with pytest.raises(SettingError, match="buffer=101"):
    combine.score(
      [("a", functools.partial(length.overlong, max_length=100, buffer=101), 1.0)],
      [_example()],
      [[_completion("")]],
      max_length=5,
    )


def _raises(example, completion):
  raise RuntimeError("no such luck")


def _returns(value):
  return lambda example, completion: value


def test_score():
  """Two weighted rewards, one for the whole completion and one for its steps, by hand."""
  group = [_completion("a", tokens=4), _completion("b", tokens=2)]
  rewards = [
    ("outcome", lambda example, completion: completion.text == "a", 2.0),
    ("process", lambda example, completion: [(0, 1.0), (1, 0.5)], 10.0),
  ]
  scores = combine.score(rewards, [_example(), None], [group, group], max_length=5)
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
    [("zero", _returns(0.0), 1.0)], [_example()], [[_completion("", tokens=3)]], max_length=3
  )
  np.testing.assert_array_equal(scores.given, [[[False, False, True]]])


def test_what_has_the_weight_zero_is_in_view_and_takes_no_part_in_the_mean():
  group = [_completion("right", tokens=3), _completion("none", tokens=3)]
  rewards = [
    ("first", lambda example, completion: 0.5 if completion.text == "right" else None, 1.0),
    ("seen", lambda example, completion: [(0, 1.0), (1, 2.0)], 0.0),
  ]
  scores = combine.score(rewards, [_example()], [group], max_length=3)
  np.testing.assert_array_equal(scores.given[0], [[0, 0, 1], [0, 0, 0]])
  np.testing.assert_array_equal(scores.components[0], [[0.5, 1.5], [np.nan, 1.5]])


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_reward_is_not_a_reward_of_zero(nothing):
  """Two rewards and four completions: given both, one, the other (a step's) and none."""
  group = [_completion(text, tokens=3) for text in ("both", "first", "second", "none")]
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
  scores = combine.score(rewards, [_example()], [group], max_length=4, on_error=7.0)
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
  group = [_completion(text, tokens=2) for text in ("right", "wrong", "none")]
  values = {"right": 1.0, "wrong": 0.0, "none": None}
  scores = combine.score(
    [("a", lambda _, c: values[c.text], 1.0)], [_example()], [group], max_length=2
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
  group = [_completion("", tokens=3), _completion("", tokens=2)]
  scores = combine.score(rewards, [_example()], [group], max_length=4, on_error=-0.75)
  np.testing.assert_array_equal(scores.rewards, [[[0, 0, 1.0 + 2.0 * -0.75, 0], [0, 2.0, 0, 0]]])
  np.testing.assert_array_equal(
    scores.given, [[[False, False, True, False], [False, True, False, False]]]
  )
  np.testing.assert_array_equal(scores.components, [[[1.0, -0.75], [1.0, 0.5]]])
  (fault,) = scores.faults
  assert fault[:3] == (0, 0, "bad") and message in fault.message


def test_a_reward_that_fails_on_everything_ends_the_run():
  rewards = [("fine", _returns(1.0), 1.0), ("bad", lambda example, completion: [][0], 1.0)]
  empty = [_completion("", tokens=0)] * 2  # of a prompt that only fills the batch
  groups = [[_completion("", tokens=3), _completion("", tokens=2)], empty]
  faults = combine.score(rewards, [_example(), None], groups, max_length=4).faults
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

  group = [_completion("", tokens=1), _completion("", tokens=2)]
  (fault,) = combine.score([("odd", odd, 1.0)], [_example()], [group], max_length=4).faults
  assert fault == (0, 0, "odd", "ValueError: ")


def test_sys_exit_in_a_reward_is_a_fault():
  def leaves(example, completion):
    return sys.exit(0) if len(completion.tokens) == 1 else 1.0

  group = [_completion("", tokens=1), _completion("", tokens=2)]
  (fault,) = combine.score([("leaves", leaves, 1.0)], [_example()], [group], max_length=4).faults
  assert fault == (0, 0, "leaves", "ValueError: called sys.exit(0)")


def test_a_late_reward_is_a_fault_and_one_that_is_always_late_ends_the_run():
  def slow(example, completion):
    time.sleep(60 if len(completion.tokens) < 3 else 0)
    return 1.0

  group = [_completion("", tokens=n) for n in (1, 2, 3, 4)]
  scores = combine.score([("slow", slow, 1.0)], [_example()], [group], max_length=4, deadline=0.1)
  assert [f.message for f in scores.faults] == ["took longer than 0.1 s (rewards.deadline)"] * 2
  start, group = time.perf_counter(), [_completion("", tokens=1)] * 1000
  with pytest.raises(
    SettingError, match="'slow' took longer than 0.1 s .* on each of the first 5 completions"
  ):
    combine.score([("slow", slow, 1.0)], [_example()], [group], max_length=4, deadline=0.1)
  assert time.perf_counter() - start < 30


def test_interrupts_are_not_swallowed():
  def interrupted(example, completion):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    combine.score([("a", interrupted, 1.0)], [_example()], [[_completion("")]], max_length=5)


def test_the_shares_of_several_processes_are_put_together():
  """Each scores its own completions, and what they gave is what one process would have given to
  all.
  """

  def odd(example, completion):
    values = {1: None, 2: 0.5, 3: [(0, 1.0), (2, -1.0)], 4: [][:1]}
    if len(completion.tokens) == 5:
      raise ValueError("five")
    return values[len(completion.tokens)]

  rewards, examples = [("odd", odd, 2.0), ("one", _returns(1.0), 0.5)], [_example(), _example()]
  groups = [[_completion("", tokens=n) for n in of] for of in ((5, 1, 2), (3, 4, 5))]
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
