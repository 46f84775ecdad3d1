"""Answers compared by algebra in a worker."""

import boxed_answers
import pytest

from grpo_jax.rewards import algebra, boxed, combine
from rewards.boxed_test import completion, example


@pytest.fixture(scope="module")
def table():
  """The pairs of the table, compared all together."""
  boxed.check_arguments()
  boxed.score_ahead(
    [(example(answer), completion(text)) for answer, text, _ in boxed_answers.PAIRS]
  )


def test_a_hostile_answer_is_a_fault_and_the_next_one_is_judged(table):
  texts = [
    "\\boxed{9^{9^{9^9}}}",
    "\\boxed{\\sqrt{12}}",
    "\\boxed{100000001!}",
    "\\boxed{\\sqrt{13}}",
  ]
  group = [completion(text) for text in texts]
  scores = combine.score([("boxed", boxed.boxed_correct, 1.0)], [example("2\\sqrt3")], [group], 1)
  assert scores.rewards[0, :, 0].tolist() == [0, 1, 0, 0]
  assert [fault.sample for fault in scores.faults] == [0, 2]
  message = (
    f"ValueError: the comparison of its answer computes for more than {algebra.SECONDS:g} seconds"
  )
  assert {fault.message for fault in scores.faults} == {message}


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("\\pi(R^2-r^2)", "0", False),
    ("\\pi(R^2-r^2)", "\\pi(R-r)(R+r)", True),
    ("3R^2", "3r^2", False),
    ("3R^2", "R^2\\cdot 3", True),
    ("R+r", "2r", False),
    ("P", "p", False),
    ("E", "e", False),
    ("2A_{16}", "2a_{16}", False),
    ("2A_{16}+a_{16}", "a_{16}+2A_{16}", True),
    ("x_n", "x_N", False),
    ("\\sin x", "\\sin X", False),
    ("\\Delta", "\\delta", False),
    ("2\\cdot\\Delta x", "2\\cdot\\delta x", False),
    ("\\delta\\cdot\\Delta x", "x\\delta\\cdot\\Delta", True),
    ("\\Gamma+\\gamma", "\\gamma+\\Gamma", True),
    ("\\gamma+x", "x+\\gamma", True),
    ("\\gamma(x+1)", "(1+x)\\gamma", True),
    ("\\gamma+x", "\\gamma x", False),
    ("\\Gamma+\\gamma", "2\\gamma", False),
    ("24", "\\Gamma(5)", True),
    ("f'(x)", "f(x)", False),
    ("y''", "y", False),
    ("y''", "y'", False),
    ("y'+y", "y+y'", True),
    ("2", "2''", False),
    ("HHT", "THH", False),
    ("ABC", "CBA", False),
    ("WW", "W^2", False),
    ("\\frac{AB}{2}", "\\frac{1}{2}AB", True),
    ("(A+B)^2", "A^2+2AB+B^2", True),
    ("AB(C+D)", "ABC+ABD", True),
    ("\\frac{RT}{V}", "R\\frac{T}{V}", True),
    ("\\frac{GMm}{r^2}", "G\\frac{Mm}{r^2}", True),
    ("(A+B)^2", "A^2+AB+B^2", False),
    ("AB", "\\frac{2AB}{2}", True),
    ("P(HHT)", "P(THH)", False),
    ("\\overrightarrow{AB}", "\\overrightarrow{BA}", False),
    ("HH+HT+TH", "HH+2HT", False),
    ("AB1", "A1B", False),
    ("2AB_{16}", "A2B_{16}", False),
    ("no", "No", True),
    ("YES", "yes", True),
    ("odd", "Odd", True),
    ("Cat", "CAT", True),
    ("cat", "\\text{CAT}", True),
    ("cat", "CAT", False),
    ("ABC", "abc", False),
    ("A'", "A", False),
    ("+".join("abcdefghijklmnopqrstuvwxyzA"), "+".join("abcdefghijklmnopqrstuvwxyza"), False),
  ],
)
def test_letters_differ_by_their_case_and_primes_and_capitals_in_a_row_by_their_order(
  expected, answer, right, table
):
  found = boxed.boxed_correct(example(expected), completion(f"\\boxed{{{answer}}}"))
  assert found == right
