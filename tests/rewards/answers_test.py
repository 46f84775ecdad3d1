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
