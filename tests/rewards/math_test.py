"""Answers that are a number."""

from fractions import Fraction

import pytest
from answered import completion, example

from grpo_jax.rewards import math
from grpo_jax.types import STOPPED, TRUNCATED


@pytest.mark.parametrize(
  "text, value",
  [
    ("72", 72),
    (" 72 ", 72),
    ("72.0", 72),
    ("72.", 72),
    ("72.50", Fraction(145, 2)),
    ("12.5.", Fraction(25, 2)),
    ("$18.50.", Fraction(37, 2)),
    ("50%.", 50),
    ("5 \u20ac.", 5),
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
  + ["0x1f", "nan", "inf", "1_000", "5\n6", "9" * 65, "2+2", "1.2.3", "72..", "5 .", "$."],
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
    ("72", "**#### 72**", 1.0),
    ("72", "so **#### $72**.", 1.0),
    ("72", "#### 72*", 0.0),
    ("72", "#### 2**72**", 0.0),
    ("72", "#### 72**2", 0.0),
  ],
)
def test_answer_correct(answer, text, reward):
  assert math.answer_correct(example(answer), completion(text)) == reward


def test_an_answer_that_was_cut_off_does_not_count():
  assert math.answer_correct(example("7"), completion("#### 7", TRUNCATED)) == 0.0
  assert math.answer_correct(example("7"), completion("#### 7\nand", TRUNCATED)) == 1.0


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
    math.answer_correct(example("blue"), completion("#### 7"))


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
  assert math.well_formed(example(), completion(text, ended)) == reward
