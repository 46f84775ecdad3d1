"""Checks an answer as a text, with arguments for case and white space."""

from grpo_jax.rewards.math import final_or_whole
from grpo_jax.types import Completion, Example


def exact_match(
  example: Example, completion: Completion, *, case: bool = True, space: bool = False
) -> float:
  """Returns 1 if the completion's answer is the example's answer, else 0.

  The answer is the text after the last `####` on its line, or without a mark the whole completion.
  White space around it never counts. If the completion is truncated within it, it has no answer.

  Args:
    example: its answer is the right one.
    completion: to judge.
    case: whether capitals differ from small letters.
    space: whether white space within the answer counts; if not, any of it is one space.

  Raises:
    ValueError: the example's own answer is empty.
  """
  expected = normal(example.answer, case, space)
  if not expected:
    raise ValueError("the example's own answer is empty")
  return float(answer_of(completion, case=case, space=space) == expected)


def answer_of(completion: Completion, *, case: bool = True, space: bool = False) -> str | None:
  """Returns the normalized answer of a completion; None without one."""
  return normal(final_or_whole(completion) or "", case, space) or None


def normal(text: str, case: bool, space: bool) -> str:
  """Returns a text without the differences that do not count; see `exact_match`."""
  text = text.strip() if space else " ".join(text.split())
  return text if case else text.casefold()
