"""Verifiers beside the strict ones: a stated option, an exact text, a pattern; and how settings
name them.
"""

import re
import time
from fractions import Fraction

import pytest
from ml_collections import ConfigDict

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.rewards import choice, combine, exact, option, pattern, steps
from grpo_jax.setup import scorers
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example


def example(answer):
  return Example("?", "", answer, {})


def completion(text, ended=STOPPED):
  return Completion(text, [1, 2], ended, [])


STATED = [
  *(
    " Answer: B",
    " #### B",
    "- Answer: B",
    "## Answer: B",
    "**Option B**",
    "(Answer: B)",
    "My answer: B",
  ),
  *("The answer is $\\text{B}$", "Answer: \\mathrm{B}", "answer: C is tempting.\nMy answer: B"),
  *(
    "B",
    "b",
    "(B)",
    "B.",
    "(b).",
    "**B**",
    "**(B)**",
    "$B$",
    "so\nB",
    "so\n(B)",
    "so\n\n**B.**\n",
    "\\boxed{B}",
  ),
  *(
    "\\boxed{(B)}",
    "\\boxed{\\text{B}}",
    "$\\boxed{\\textbf{(B)}}$",
    "The answer is $\\boxed{B}$.",
    "#### B",
    "#### (B).",
  ),
  *(
    "The answer is B",
    "The answer is B.",
    "the answer is (b)",
    "The answer is: B",
    "Answer: B",
    "answer: **B**",
  ),
  *(
    "**Answer: B**",
    "**Answer:** B",
    "The correct answer is **B**.",
    "The correct option is B",
    "I choose option B",
  ),
  *(
    "Answer:\nB",
    "The final answer is [B], I think",
    "The answer is B because A is not",
    "answer is B) Bern",
  ),
  *(
    "It must be (B), as said.",
    "A. Oslo\nB. Bern\nThe answer is B",
    "The answer is A. No, the answer is B.",
  ),
  *(
    "\\boxed{A}, no, \\boxed{B}",
    "The answer is A.\n#### B",
    "#### A\nThe answer is B",
    "\\boxed{A} so the answer is B.",
  ),
]
NOT_STATED = [
  *(
    "",
    "A",
    "C",
    "Both",
    "Bern",
    "B or C",
    "The answer is B or C",
    "The answer is (B) and (C)",
    "The answer is B, C",
  ),
  *(
    "Answer: A/B",
    "\\boxed{A, B}",
    "\\boxed{}",
    "\\boxed{B",
    "\\boxed{AB}",
    "#### B C",
    "#### B\n#### A",
    "####\n",
  ),
  *(
    "The answer is Berlin",
    "The answer is Because",
    "The answer is B1",
    "The answer is not B",
    "the answer is b",
  ),
  *(
    "The answer is B. No, the answer is A.",
    "The answer is B.\nA",
    "(A) is wrong, (B) is right",
    "(A)(B)",
    "A\nB\nC",
  ),
  *(
    "\\boxed{B} and \\boxed{C}",
    "\\boxed{B} and \\boxed{",
    "The answer is A house",
    "Answer: I think so",
    "\u0412",
  ),
  *("The answer is B? No.", "vitamin B", "plan B it is", "answer", "answer is", "(B"),
]


@pytest.mark.parametrize("text", STATED)
def test_the_last_stated_option_counts(text):
  assert option.option_correct(example("B"), completion(text)) == 1.0
  assert option.option_correct(example("(b)"), completion(text)) == 1.0
  assert option.option_correct(example("A"), completion(text)) == 0.0


@pytest.mark.parametrize("text", NOT_STATED)
def test_what_states_another_option_or_several_is_wrong(text):
  assert option.option_correct(example("B"), completion(text)) == 0.0


def test_a_statement_that_was_cut_off_does_not_count():
  for text, reward in (
    ("The answer is B", 0),
    ("The answer is B\nsince", 1),
    ("\\boxed{B}", 0),
    ("B", 0),
  ):
    assert option.option_correct(example("B"), completion(text, TRUNCATED)) == reward


def test_a_and_i_are_words_too():
  for letter in "AI":
    for text, reward in (
      (f"The answer is {letter}.", 1),
      (f"The answer is {letter} cat", 0),
      (f"Answer: ({letter})", 1),
    ):
      assert option.option_correct(example(letter), completion(text)) == reward, text


def test_the_time_of_an_option_grows_with_the_text():
  for text in (
    "answer is " * 30_000,
    "(B" * 100_000,
    "*" * 300_000,
    "####" * 80_000,
    "answer is B or " * 20_000,
    " " * 10**5,
  ):
    start = time.perf_counter()
    option.answer_of(completion(text))
    assert time.perf_counter() - start < 2.0, text[:20]


@pytest.mark.parametrize(
  "text, arguments, reward",
  [
    ("New York", {}, 1),
    (" New\n York ", {}, 1),
    ("so\n#### New York", {}, 1),
    ("new york", {}, 0),
    ("new york", {"case": False}, 1),
    ("New  York", {"space": True}, 0),
    (" New York ", {"space": True}, 1),
    ("New York.", {}, 0),
    ("NewYork", {}, 0),
    ("in New York", {}, 0),
    ("", {}, 0),
    ("New York\n#### ", {}, 0),
  ],
)
def test_exact_match(text, arguments, reward):
  assert exact.exact_match(example("New York"), completion(text), **arguments) == reward


def test_a_text_that_was_cut_off_is_no_answer():
  assert exact.exact_match(example("New York"), completion("New York", TRUNCATED)) == 0.0
  with pytest.raises(ValueError, match="own answer is empty"):
    exact.exact_match(example(" "), completion(""))


@pytest.mark.parametrize(
  "answer, text, reward",
  [
    ("1,000", "The answer is 1000", 1),
    ("72", "answer is 7; the answer is $72.00", 1),
    ("72", "answer is 72; the answer is 7", 0),
    ("blue", "the answer is  blue ", 1),
    ("blue", "the answer is blueish", 0),
    ("blue", "blue", 0),
    ("72", "", 0),
  ],
)
def test_pattern(answer, text, reward):
  found = pattern.pattern_correct(example(answer), completion(text), pattern=r"answer is ([^;]+)")
  assert found == reward


def test_a_group_that_takes_no_part_is_no_answer():
  assert pattern.answer_of(completion("b"), pattern="(a)|b") is None


def test_a_pattern_that_backtracks_is_stopped():
  rewards = [("p", lambda e, c: pattern.pattern_correct(e, c, pattern="((a+)+)b"), 1.0)]
  group = [completion("a" * 40), completion("aab")]
  scores = combine.score(rewards, [example("aa")], [group], 2, deadline=0.3)
  assert [fault.sample for fault in scores.faults] == [0] and scores.rewards[0, :, 1].tolist() == [
    0,
    1,
  ]


def section(functions=(), reward="math.answer_correct", arguments=()):
  models = {"outcome_models": (), "process_models": ()}
  return ConfigDict({"functions": functions, "reward": reward, "arguments": arguments, **models})


@pytest.mark.parametrize(
  "reward, arguments, texts, votes",
  [
    ("math.answer_correct", (), ["#### 7", "#### **7.0**", "7"], [7, 7, None]),
    ("choice.choice_correct", (), ["#### b", "(B).", "so B"], ["B", "B", None]),
    ("option.option_correct", (), ["#### b", "the answer is B", "so"], ["B", "B", None]),
    ("exact.exact_match", (("case", False),), ["New York", "new  york"], ["new york", "new york"]),
    (
      "pattern.pattern_correct",
      (("pattern", "is (.*)"),),
      ["is 7", "is 7.0", "x"],
      [Fraction(7)] * 2 + [None],
    ),
    (
      "boxed.boxed_correct",
      (),
      ["\\boxed{1/2}", "\\boxed{0.5}", "0.5"],
      [Fraction(1, 2)] * 2 + [None],
    ),
  ],
)
def test_every_verifier_votes(reward, arguments, texts, votes):
  answer_of = scorers.eval_reward(section(reward=reward, arguments=arguments)).answer_of
  assert [answer_of(completion(text)) for text in texts] == votes
  assert policy.majority([True, True, False][: len(votes)], votes) == 1.0


def test_others_do_not_vote():
  assert scorers.eval_reward(section(reward="format.worked")).answer_of is None
  assert steps.answer_of(completion("#### 7")) == 7 and choice.answer_of(completion("x y")) is None


def test_a_file_of_ones_own_may_say_what_its_answers_are(tmp_path):
  (tmp_path / "mine.py").write_text(
    "def right(example, completion, *, end='.'):\n  return completion.text.endswith(end)\n\n\n"
    "def answer_of(completion, *, end='.'):\n  return completion.text.removesuffix(end)\n\n\n"
    "def check_arguments(*, end='.'):\n  if not end:\n    raise ValueError('empty')\n"
  )
  found = scorers.eval_reward(
    section(reward=f"{tmp_path}/mine.py:right", arguments=(("end", "!"),))
  )
  assert found.answer_of(completion("so!")) == "so" and found.score(example(""), completion("so!"))
  assert found.score_ahead is None
  with pytest.raises(ValueError, match="empty"):
    scorers.eval_reward(section(reward=f"{tmp_path}/mine.py:right", arguments=(("end", ""),)))
  (tmp_path / "other.py").write_text(
    "def right(example, completion, *, end):\n  pass\n\n\ndef answer_of(c):\n  pass\n"
  )
  with pytest.raises(
    SettingError, match=re.escape("other.py:right cannot be called so: got an unexpected keyword")
  ):
    scorers.eval_reward(section(reward=f"{tmp_path}/other.py:right", arguments=(("end", "!"),)))


def test_a_batch_is_known_before_it_is_scored():
  seen = []
  group = [completion("a"), None, Completion("", [], STOPPED, [])]
  combine.ahead([seen.append], [example("7"), None], [group, group])
  assert seen == [[(example("7"), completion("a"))]]
  functions = (("a", "boxed.boxed_correct", 1.0), ("b", "math.answer_correct", 1.0))
  boxed, math = scorers.reward_functions(settings.Rewards(functions=functions), [])
  assert boxed.reward.score_ahead.__name__ == "score_ahead" and math.reward.score_ahead is None
