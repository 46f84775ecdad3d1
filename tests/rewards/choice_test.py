"""Answers that are a letter."""

import pytest
from answered import completion, example

from grpo_jax.rewards import choice
from grpo_jax.types import TRUNCATED


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
  assert choice.choice_correct(example("B"), completion(text)) == 1.0
  assert choice.choice_correct(example("(b)."), completion(text)) == 1.0


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
  assert choice.choice_correct(example("B"), completion(text)) == 0.0


def test_letters_are_of_the_alphabet():
  """Letters that python's `re` takes for k and s where it ignores case."""
  assert choice.choice_correct(example("K"), completion("\u212a")) == 0.0
  assert choice.choice_correct(example("S"), completion("\u017f")) == 0.0


def test_a_choice_that_was_cut_off_does_not_count():
  for text, reward in (
    ("B", 0.0),
    ("#### B", 0.0),
    ("#### B\n", 1.0),
    ("B\n", 0.0),
    ("#### A\n#### B", 0.0),
  ):
    assert choice.choice_correct(example("B"), completion(text, TRUNCATED)) == reward


def test_the_example_needs_a_letter():
  with pytest.raises(ValueError, match="'blue' is not the letter of an option"):
    choice.choice_correct(example("blue"), completion("B"))
