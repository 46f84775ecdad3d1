"""Answers in boxes, compared as texts."""

import boxed_answers
import hostile_answers
import pytest

from grpo_jax.rewards import answers, boxed
from rewards.boxed_test import completion, example


@pytest.fixture(scope="module")
def table():
  """The pairs of the table, compared all together."""
  boxed.check_arguments()
  boxed.score_ahead(
    [(example(answer), completion(text)) for answer, text, _ in boxed_answers.PAIRS]
  )


def test_an_answer_with_too_many_brackets_within_one_another_is_none():
  def roots(depth):
    return "\\sqrt{" * depth + "2" + "}" * depth

  assert answers.read(roots(answers.DEEPEST)) is not None
  assert answers.read(roots(answers.DEEPEST + 1)) is None
  assert answers.read("+".join([roots(1)] * 30)) is not None  # beside one another


def test_answers_are_read_or_refused(table):
  """Any text of pieces that mean something, whatever their order."""
  for seed in range(300):
    text = hostile_answers.noise(seed, 40)
    found = answers.read(text)
    if found is not None:
      hash(answers.key(found))
      assert answers.equal(found, found, lambda *_: False)


def _judge(expected, answer):
  """Returns whether the answer in a box is right."""
  return bool(boxed.boxed_correct(example(expected), completion(f"\\boxed{{{answer}}}")))


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("(1,2)", "(x,y)=(1,2)", True),
    ("(x,y)=(1,2)", "(1,2)", True),
    ("(1,2)", "P = (1,2)", True),
    ("(a,b,c) = (1,2,3)", "(1,2,3)", True),
    ("(a,b,c) = (1,2,3)", "(a, b, c)=(1, 2, 3)", True),
    ("\\{1,2\\}", "S=\\{2,1\\}", True),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "A=\\begin{pmatrix}1&2\\end{pmatrix}", True),
    ("(1,2)", "(x,y)=(2,1)", False),
    ("(a,b,c) = (1,2,3)", "(c,b,a) = (1,2,3)", False),
    ("P=(1,2)", "Q=(1,2)", False),
    ("(1,2)", "S=\\{1,2\\}", False),
    ("(1,2)", "(x,y)\\neq(1,2)", False),
    ("x=3, x=-3", "y=\\pm 3", False),
  ],
)
def test_a_tuple_may_have_a_name(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("\\log_2 3", "\\log_2(3)", True),
    ("\\log_{2} 3", "\\log_2 3", True),
    ("3", "\\log_2 8", True),
    ("\\log_2 3", "\\log_3 2", False),
    ("3", "\\log_2 9", False),
    ("\\log_2 3 4", "\\log_2 34", False),
  ],
)
def test_a_logarithm_may_have_brackets(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("11,\\! 111,\\! 111,\\! 100", "11111111100", True),
    ("11,\\!111", "11111", True),
    ("1,\\! 2", "12", False),
    ("(1,\\! 234)", "1234", False),
  ],
)
def test_negative_space_and_a_blank_may_stand_between_groups_of_digits(
  expected, answer, right, table
):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("\\{1\\pm\\sqrt{5},-2\\}", "\\{-2, 1+\\sqrt5, 1-\\sqrt5\\}", True),
    ("-2,2,3", "\\pm 2, 3", True),
    ("\\pm 1, \\pm 2", "-2,-1,1,2", True),
    ("(1,2),(1,-2),(0,0)", "(1,\\pm 2),(0,0)", True),
    ("\\pm 2, 3", "2, 3", False),
    ("\\pm 2, 3", "\\pm 3, 2", False),
  ],
)
def test_plus_or_minus_in_a_set_is_two_entries(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("\\frac13", "0.\\overline{3}", True),
    ("0.1\\overline{3}", "\\frac{2}{15}", True),
    ("0.\\overline{3}", "0.\\bar{3}", True),
    ("0.\\bar 3", ".\\overline{33}", True),
    ("-\\frac{37}{3}", "-12.\\overline{3}", True),
    ("1", "0.\\overline{9}", True),
    ("33.\\overline{3}\\%", "33\\frac{1}{3}\\%", True),
    ("\\frac{1}{7}", "0.\\overline{142857}", True),
    ("0.\\overline{3}", "0.3", False),
    ("0.\\overline{3}", "0.33", False),
    ("0.\\overline{12}", "0.1\\overline{2}", False),
    ("3", "\\overline{3}", False),
    ("1.\\overline{3}", "1\\overline{3}", False),
  ],
)
def test_repeating_decimals_are_fractions(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("30^\\circ", "\\angle A = 30^\\circ", True),
    ("30^\\circ", "\\angle ABC=30^\\circ", True),
    ("\\angle B = 30", "\\angle A = 30", False),
    ("\\langle 1,2\\rangle", "(1,2)", True),
    ("30^\\circ", "\\angle A = 31^\\circ", False),
    ("40", "40^\\circ\\text{F}", True),
    ("40^\\circ", "40\\text{ degrees Fahrenheit}", True),
    ("40^\\circ\\text{F}", "40^\\circ\\text{C}", False),
    ("40^\\circ\\text{F}", "41^\\circ\\text{F}", False),
    ("40\\text{ cm}", "40^\\circ", False),
    ("\\text{6:00 p.m.}", "6:00 p.m.", True),
    ("\\text{6:00 p.m.}", "6:00\\text{ a.m.}", False),
    ("16\\text{ oz}", "16\\text{ ounces}", True),
  ],
)
def test_an_angle_is_a_name_and_no_bracket(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("2,1", "x=1,y=2", False),
    ("x=1,y=2", "2,1", False),
    ("1,2", "x=1,y=2", True),
    ("x=1,y=2", "1,2", True),
    ("x=1,y=2", "y=2,x=1", True),
    ("x=1,y=2", "x=2,y=1", False),
    ("2,1", "x_1=1, x_2=2", True),
    ("2,1", "x=1, x=2", True),
    ("5", "\\not= 5", False),
    ("x \\neq 5", "x \\not= 5", True),
    ("5", "x \\not= 5", False),
  ],
)
def test_a_value_belongs_to_its_variable(expected, answer, right, table):
  assert _judge(expected, answer) == right


@pytest.mark.parametrize(
  "expected, answer, right",
  [
    ("5 mL", "5 ml", True),
    ("5 mL", "5", True),
    ("5\\text{ mL}", "5 mL", True),
    ("5 L", "5 liters", True),
    ("5 L", "5L", True),
    ("5mL", "5 mL", True),
    ("5 m", "5m", True),
    ("5 L", "5 mL", False),
    ("5 L", "6L", False),
    ("5L", "5", False),
    ("5 m", "5M", False),
    ("5 m^2", "5m", False),
  ],
)
def test_a_unit_may_touch_its_amount(expected, answer, right, table):
  assert _judge(expected, answer) == right
