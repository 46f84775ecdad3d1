"""Answers that a pattern finds."""

import pytest

from grpo_jax.rewards import combine, pattern
from rewards.verifiers_test import completion, example


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
