r"""Checks an answer that a regular expression extracts, as in {"pattern": r"[Aa]nswer: *(.+)"}."""

import collections
import re

from grpo_jax.errors import SettingError
from grpo_jax.rewards.math import number
from grpo_jax.types import Completion, Example


def pattern_correct(example: Example, completion: Completion, *, pattern: str) -> float:
  """Returns 1 if the pattern extracts the example's answer, else 0.

  The answer is group 1 of the pattern's last match in the completion, truncated or not. Two numbers
  are compared as such, anything else as a text without the white space around it. A pattern that
  takes long on a completion is stopped at `rewards.deadline`.

  Args:
    example: its answer is the right one.
    completion: to judge.
    pattern: a regular expression of python's `re`.

  Raises:
    ValueError: the example's own answer is empty.
  """
  if not example.answer.strip():
    raise ValueError("the example's own answer is empty")
  return float(answer_of(completion, pattern=pattern) == value(example.answer))


def answer_of(completion: Completion, *, pattern: str) -> object | None:
  """Returns the extracted answer, as a number if it is one; None without a match."""
  last = collections.deque(re.finditer(pattern, completion.text), maxlen=1)
  return value(last[0][1]) if last and last[0][1] is not None else None


def check_arguments(*, pattern: str) -> None:
  """Refuses a pattern that does not compile or has no group."""
  shown = f"rewards.functions, eval.arguments: pattern={pattern!r:.80}"
  if not isinstance(pattern, str):
    raise SettingError(f"{shown}: is no text; give a regular expression, as in 'Answer: *(.+)'")
  try:
    groups = re.compile(pattern).groups
  except (re.error, RecursionError, OverflowError) as error:
    raise SettingError(
      f"{shown}: {error}; give a regular expression, as in 'Answer: *(.+)'"
    ) from error
  if not groups:
    raise SettingError(
      f"{shown}: has no group; put brackets around the answer, as in 'Answer: *(.+)'"
    )


def value(text: str) -> object:
  """Returns a number if the text is one, else the text without the white space around it."""
  as_number = number(text)
  return text.strip() if as_number is None else as_number
