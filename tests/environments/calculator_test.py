"""Tests that the calculator is exact, refuses what is no arithmetic, and is never slow."""

import random
import time
from fractions import Fraction

import pytest

from grpo_jax.environments import calculator
from grpo_jax.environments.calculator import LONGEST, MOST, WRONG
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Turn


def result(expression: str) -> str:
  """Returns the result, which took less than a second."""
  start = time.perf_counter()
  found = calculator.result(expression)
  assert time.perf_counter() - start < 1
  return found


@pytest.mark.parametrize(
  ("expression", "want"),
  [
    ("37 * 48", "1776"),
    ("37*48", "1776"),
    ("  1 +  2 ", "3"),
    ("0", "0"),
    ("2 - 3", "-1"),
    # precedence, from the left, brackets
    ("1 + 2 * 3", "7"),
    ("(1 + 2) * 3", "9"),
    ("20 - 5 - 3", "12"),
    ("48 / 2 / 3", "8"),
    ("48 / (2 * 3)", "8"),
    ("((((1 + 1))))", "2"),
    ("(" * 30 + "7" + ")" * 30, "7"),
    # a minus before a number or a bracket
    ("-3", "-3"),
    ("--3", "3"),
    ("2 * -3", "-6"),
    ("-(2 + 3) * 2", "-10"),
    ("-0", "0"),
    ("0 / 5", "0"),
    ("-" * 90 + "1", "1"),
    # whole, decimal, rounded
    ("48 / 2", "24"),
    ("10 / 4", "2.5"),
    ("1 / 8", "0.125"),
    ("-1 / 8", "-0.125"),
    ("123456789012 / 1000", "123456789.012"),
    ("1 / 3", "0.333333333333"),
    ("2 / 3", "0.666666666667"),
    ("1 / 3 * 3", "1"),
    ("2 / 3 * 1000000", "666666.666667"),
    ("0.1 + 0.2", "0.3"),
    ("1.10", "1.1"),
    ("1234567890.123456789 - 1234567890", "0.123456789"),  # more digits than a float has
    (".5 + 1.", "1.5"),
    ("1 / 1000000000", "0.000000001"),
    ("1 / 999999999999", "0.000000000001"),
    ("1 - 1 / 999999999999 / 1000", "1"),
    ("999999999999.5 / 1", "1000000000000"),
    # the largest
    ("999999999999", "9" * LONGEST),
    ("999999 * 999999", "999998000001"),
    ("-999999999999", "-" + "9" * LONGEST),
    ("+".join(["1"] * (MOST // 2)), str(MOST // 2)),
  ],
)
def test_results(expression, want):
  assert result(expression) == want


@pytest.mark.parametrize(
  "expression",
  [
    "",
    "   ",
    "()",
    "1 +",
    "* 2",
    "1 2",
    "(1",
    "1)",
    "1 / 0",
    "1 / (2 - 2)",
    "1 / 0.0",
    # huge
    "1000000000000",
    "999999999999 + 1",
    "999999 * 1000002",
    "9" * MOST,
    "1000000 * 1000000 - 999999999999",
    "9**9**9",
    "9**2",
    "2**-1",
    # other operators, kinds of numbers, comments, several lines
    "7 // 2",
    "7 % 2",
    "1 < 2",
    "1 << 2",
    "~1",
    "+3",
    "1e3",
    "1e400",
    "1E-9",
    "0x10",
    "0b1",
    "1_000",
    "1,000",
    "1, 2",
    "07",
    "1.5.5",
    "2j",
    "1 # one",
    "1\n+ 2",
    "1\n2",
    "1; 2",
    "1\t+ 2",
    "1\0",
    # names, calls, texts
    "x",
    "pi",
    "True",
    "None",
    "abs(1)",
    "2(3)",
    "(2)(3)",
    "'a' * 3",
    "[1]",
    "__import__('os').getpid()",
    "(lambda: 1)()",
    "1 if 1 else 2",
    # digits and signs of other scripts
    "١ + ١",
    "３",
    "²",
    "2 × 3",
    "6 ÷ 2",
    "5 − 3",
    "1\u00a0+ 1",
    "\ud800",
    # long and deep
    "(" * 1000 + "1" + ")" * 1000,
    "-" * 1000 + "1",
    "1" + " + 1" * 1000,
    "[" * 50,
    "(" * MOST,
    "1" + " " * MOST,
  ],
)
def test_whatever_is_no_arithmetic_is_an_error(expression, recwarn):
  assert result(expression) == WRONG
  assert not recwarn.list  # such as Python's own, of a number that is called


def test_random_expressions_are_exact():
  """Against fractions; what is no decimal of LONGEST digits is off by half of its last digit."""
  rng = random.Random(0)
  for _ in range(500):
    a, b, c = (rng.randint(1, 999) for _ in range(3))
    for text, want in (
      (f"{a} + {b} * {c}", Fraction(a + b * c)),
      (f"({a} - {b}) * {c}", Fraction((a - b) * c)),
      (f"{a / 100} * {b / 10}", Fraction(a * b, 1000)),
      (f"{a} / 8 + {b} / 125", Fraction(a, 8) + Fraction(b, 125)),
    ):
      assert Fraction(result(text)) == want, text
    want = Fraction(a - c, b)
    found = result(f"{a} / {b} - {c} / {b}")
    assert abs(Fraction(found) - want) <= abs(want) / 10 ** (LONGEST - 1) / 2, (a, b, c, found)


def test_a_result_is_an_expression_again():
  """What the policy reads it can copy into its next call."""
  for expression in ("1 / 999999999999", "-2 / 3", "999999999999 / 7", "48 / 2"):
    assert result(result(expression)) == result(expression)


# -- turns


def answer(text: str, ended: int = STOPPED, state: object = None) -> Turn:
  start = time.perf_counter()
  turn = calculator.step(state, Completion(text, [1], ended, []))
  assert time.perf_counter() - start < 1
  return turn


def test_a_call_is_answered_and_the_state_stays():
  """The stop text is not in the turn, and there is no reward."""
  state = {"question": "How many?"}
  assert answer("Ann has <<calc: 37 * 48", state=state) == Turn(state, "1776", None)
  assert answer("<<calc:37*48").observation == "1776"
  assert answer("<<calc: nothing").observation == WRONG
  assert answer("<<calc:").observation == WRONG
  assert answer("<<calc: 1 +\n 2").observation == WRONG


def test_of_several_calls_the_last_one_is_answered():
  assert answer("<<calc: 1 + 1>>2 and <<calc: 2 + 3").observation == "5"
  assert answer("<<calc: 1 + <<calc: 2 + 3").observation == "5"
  assert answer("<<calc: 1 + 1>>2, so <<calc: x").observation == WRONG


@pytest.mark.parametrize(
  "text",
  [
    "",
    "so 1 + 1 is 2\n#### 2",
    "<<calc: 1 + 1>>2\n#### 2",
    "<calc: 1 + 1",
    "<<calculator: 1 + 1",
    "<<calc: 1 < 2",
    "<<calc: 1 + 1> and",
    "<< calc: 1",
  ],
)
def test_any_other_turn_ends_the_episode(text):
  assert answer(text, state=1) == Turn(1, None, None)


def test_a_call_in_a_truncated_turn_is_not_answered():
  """Its expression may have been cut."""
  assert answer("<<calc: 1 + 1", TRUNCATED, 1) == Turn(1, None, None)


def test_long_turns_are_not_slow():
  for text in (
    "<<calc:" * 50_000,
    "<<calc: " + "1" * 500_000,
    "<<calc: " + "(" * 500_000,
    "<" * 10**6,
  ):
    assert answer(text).observation in (WRONG, None)
