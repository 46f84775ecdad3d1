"""The check of a multiple choice answer: one letter, never looked for within a longer text."""

import re
import string

from grpo_jax.rewards.math import MARK, final_answer
from grpo_jax.types import STOPPED, Completion, Example

LETTERS = string.ascii_uppercase  # of the options, in their order

_LETTER = re.compile(r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Za-z])\)?)\.?")


def letter(text: str) -> str | None:
  """Returns the upper-case letter of a text such as "B", "b", "(b)", "[B]", "B)" or "B.", and None for any other."""
  found = _LETTER.fullmatch(text.strip())
  return found[found.lastindex].upper() if found else None


def choice_correct(example: Example, completion: Completion) -> float:
  """1 if the completion's answer is the letter of the example's answer, else 0.

  The answer is what stands after the last `####` on its line; without a mark it is the whole completion. Where the
  completion was cut off within it, it is no answer: B may be the beginning of Berlin.

  Raises:
    ValueError: the example's own answer is no letter.
  """
  expected = letter(example.answer)
  if expected is None:
    raise ValueError(f"the answer {example.answer[:80]!r} is not the letter of an option")
  return float(answer_of(completion) == expected)


def answer_of(completion: Completion) -> str | None:
  """Returns the letter that a completion answers with; None where it gives none."""
  answer = final_answer(completion)
  if MARK not in completion.text and completion.ended == STOPPED:
    answer = completion.text
  return None if answer is None else letter(answer)
