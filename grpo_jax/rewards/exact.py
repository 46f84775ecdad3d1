"""The check of an answer as a text: character by character, but for white space and case as the
arguments say.
"""

from grpo_jax.rewards.math import final_or_whole
from grpo_jax.types import Completion, Example


def exact_match(
  example: Example, completion: Completion, *, case: bool = True, space: bool = False
) -> float:
  """1 if the completion's answer is the example's answer, else 0.

  The answer is what stands after the last `####` on its line; without a mark it is the whole
  completion. White space around it never counts. Where the completion was cut off within it, it is
  no answer.

  Args:
    example: its answer is the right one.
    completion: the one to judge.
    case: whether capitals differ from small letters.
    space: whether white space within the answer counts; else any of it is one space.

  Raises:
    ValueError: the example's own answer is empty.
  """
  expected = normal(example.answer, case, space)
  if not expected:
    raise ValueError("the example's own answer is empty")
  return float(answer_of(completion, case=case, space=space) == expected)


def answer_of(completion: Completion, *, case: bool = True, space: bool = False) -> str | None:
  """Returns the answer of a completion, normalised; None where it gives none."""
  return normal(final_or_whole(completion) or "", case, space) or None


def normal(text: str, case: bool, space: bool) -> str:
  """Returns a text without what does not count in it; see `exact_match`."""
  text = text.strip() if space else " ".join(text.split())
  return text if case else text.casefold()
