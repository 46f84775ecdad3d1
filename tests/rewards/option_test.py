"""The option that a text states."""

import time

import pytest

from grpo_jax.rewards import option
from grpo_jax.types import TRUNCATED
from rewards.verifiers_test import completion, example

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


@pytest.mark.parametrize(
  "text",
  [
    "The answer is (B), V = IR.",
    "The answer is **B**, N = 7",
    "Answer: B, E=mc^2",
    "the answer is (B), X-rays",
    "The answer is B and F = ma holds",
    "\\boxed{\\textbf{(B)}\\ 12}",
    "\\boxed{B) Paris}",
    "\\boxed{B. Paris}",
    "#### B) Paris",
    "#### **B.** Paris",
  ],
)
def test_a_formula_or_the_text_of_the_option_may_follow(text):
  assert option.option_correct(example("B"), completion(text)) == 1.0


@pytest.mark.parametrize(
  "text",
  [
    "\\boxed{B) or C)}",
    "#### (B), (C)",
    "#### B) Paris, C) Rome",
    "\\boxed{(B) 12, (C) 13}",
    "\\boxed{Berlin}",
    "#### Berlin",
    "\\boxed{B12}",
    "\\boxed{B. subtilis}",
  ],
)
def test_a_box_with_two_letters_or_a_word_is_no_option(text):
  assert option.option_correct(example("B"), completion(text)) == 0.0


@pytest.mark.parametrize(
  "text, letter",
  [
    ("The answer is B. Option (A) is wrong.", "B"),
    ("The answer is B, because option C is too small.", "B"),
    ("**Answer: B**\n\nExplanation: option (C) fails.", "B"),
    ("#### B\nOption (C) fails", "B"),
    ("\\boxed{B}\nOption (C) fails", "B"),
    ("B\nOption (C) fails", "B"),
    ("Option (C) fails.\nThe correct option is B.", "B"),
    ("The answer is A or B. Choice A is larger.", None),
    ("Option (A) fails. I choose option B", "B"),
  ],
)
def test_an_option_that_is_only_mentioned_counts_if_none_is_stated(text, letter):
  assert option.answer_of(completion(text)) == letter


@pytest.mark.parametrize(
  "text, letter",
  [
    ("Is the answer (A)? No: 2 > 1. Option B is correct.", "B"),
    ("Suppose the answer is A. That fails.\nSo I pick option B.", "B"),
    ("The answer is A? No.\n**Option (B)** is the correct answer, as 2 > 1.", "B"),
    ("Say the answer is A. It is not. Therefore, we choose option B", "B"),
    ("The answer is A. No, so option B is right", "B"),
    ("\\boxed{A} is wrong. I'll select option (B).", "B"),
    ("The answer is B. Option (A) is correct? No.", "B"),
    ("The answer is B. If option A is correct, 2 > 3.", "B"),
    ("The answer is B. Option A is correct only if 2 > 3.", "B"),
    ("The answer is B. Option A is correct, but not the largest.", "B"),
    ("The answer is B. Option (A) is not correct.", "B"),
    ("The answer is B. I would not choose option A.", "B"),
    ("The answer is B. Those who choose option A forget the sign.", "B"),
    ("The answer is B. If we pick option A, 2 > 3.", "B"),
    ("The answer is D: all. Option A is correct. Option B is correct.", "D"),
    ("The answer is A. So I pick option B or C.", None),
    ("The answer is B? No. Option A is correct.", "A"),
    ("The answer is B. Is option A correct?\nThe option I chose is the answer.", "B"),
    ("I pick option A. No, the answer is B.", "B"),
  ],
)
def test_an_option_that_is_picked_or_called_correct_is_stated(text, letter):
  assert option.answer_of(completion(text)) == letter


@pytest.mark.parametrize(
  "text, letter",
  [
    ("<think>A or C?</think> <answer>B</answer>", "B"),
    ("<think>The answer is A.</think>\n<answer> (B) </answer>", "B"),
    ("<answer>\nB\n</answer>", "B"),
    ("<answer>B) Paris</answer>", "B"),
    ("<answer>Option B</answer>", "B"),
    ("<answer>The answer is B.</answer>", "B"),
    ("The answer is A. <answer>B or C</answer>", None),
    ("<answer>B", None),
    ('The answer is "B".', "B"),
    ('The answer is "B" and "C".', None),
    ('The answer is "B or C".', None),
    ('The answer is "B", "C" is wrong.', None),
    ("Answer: \u201cB\u201d", "B"),
    ("The answer is `A`", "A"),
    ("`B`", "B"),
    ("#### `B`", "B"),
    ("The answer is B's square", None),
  ],
)
def test_an_option_may_be_in_tags_or_quoted(text, letter):
  assert option.answer_of(completion(text)) == letter


def test_a_and_i_are_words_too():
  for letter in "AI":
    for text, reward in (
      (f"The answer is {letter}.", 1),
      (f"The answer is {letter} cat", 0),
      (f"Answer: ({letter})", 1),
      (f"Answer: {letter} (the sky)", 1),
      (f"The answer is {letter} - the sky", 1),
      (f"Answer: {letter} = 12", 1),
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
    "Answer: " + "*" * 10**4 + "x",
    "Answer" + " " * 10**4 + "x",
    "Answer:\n" + "*\n" * 10**4,
    "<answer>" * 40_000,
    "<answer>" + "B " * 10**5,
    "The answer is " + '"' * 10**5,
    "option B " * 30_000,
    "So I pick option B. " * 20_000,
    "Option B is correct. " * 20_000,
    "so" + " " * 10**5,
    "Option B is" + " " * 10**5,
  ):
    start = time.perf_counter()
    option.answer_of(completion(text))
    assert time.perf_counter() - start < 2.0, text[:20]
