"""The check of a multiple choice answer: one letter, never looked for within a longer text."""

import re
import string

from grpo_jax.rewards.math import final_or_whole
from grpo_jax.types import Completion, Example

LETTERS = string.ascii_uppercase  # of the options, in their order

_LETTER = re.compile(r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Za-z])\)?)\.?")


def letter(text: str) -> str | None:
  """Returns the upper-case letter of a text such as "B", "b", "(b)", "[B]", "B)" or "B.", and None
  for any other.
  """
  found = _LETTER.fullmatch(text.strip())
  return found[found.lastindex].upper() if found else None


def choice_correct(example: Example, completion: Completion) -> float:
  """1 if the completion's answer is the letter of the example's answer, else 0.

  The answer is what stands after the last `####` on its line; without a mark it is the whole
  completion. Where the completion was cut off within it, it is no answer: B may be the beginning of
  Berlin.

  Raises:
    ValueError: the example's own answer is no letter.
  """
  expected = right_letter(example)
  return float(answer_of(completion) == expected)


def right_letter(example: Example) -> str:
  """Returns the letter of the example's answer.

  Raises:
    ValueError: it is none.
  """
  found = letter(example.answer)
  if found is None:
    raise ValueError(f"the answer {example.answer[:80]!r} is not the letter of an option")
  return found


def answer_of(completion: Completion) -> str | None:
  """Returns the letter that a completion answers with; None where it gives none."""
  answer = final_or_whole(completion)
  return None if answer is None else letter(answer)
