"""Checks a multiple-choice answer that is one letter and nothing else."""

import re
import string

from grpo_jax.rewards.math import final_or_whole
from grpo_jax.types import Completion, Example

LETTERS = string.ascii_uppercase  # of the options, in their order

_LETTER = re.compile(r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Za-z])\)?)\.?")


def letter(text: str) -> str | None:
  """Returns the letter of "B", "b", "(b)", "[B]", "B)" or "B." in upper case; None otherwise."""
  match = _LETTER.fullmatch(text.strip())
  return match[match.lastindex or 0].upper() if match else None


def choice_correct(example: Example, completion: Completion) -> float:
  """Returns 1 if the completion's answer is the letter of the example's answer, else 0.

  The answer is the text after the last `####` on its line, or without a mark the whole completion.
  If the completion is truncated within it, it has no answer: B may be the beginning of Berlin.

  Raises:
    ValueError: the example's own answer is no letter.
  """
  expected = right_letter(example)
  return float(answer_of(completion) == expected)


def right_letter(example: Example) -> str:
  """Returns the letter of the example's answer; raises ValueError if it is none."""
  right = letter(example.answer)
  if right is None:
    raise ValueError(f"the answer {example.answer[:80]!r} is not the letter of an option")
  return right


def answer_of(completion: Completion) -> str | None:
  """Returns the letter that a completion answers with; None without one."""
  answer = final_or_whole(completion)
  return None if answer is None else letter(answer)
