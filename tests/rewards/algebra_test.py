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
