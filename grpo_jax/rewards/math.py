"""Checks GSM8K answers strictly: the number after the last `####` must be equal, as a fraction.

Numbers, which may be in bold or in a box, are read by a regular expression: nothing that a model
wrote is evaluated.
"""

import re
from fractions import Fraction

from grpo_jax.types import STOPPED, Completion, Example

MARK = "####"
LONGEST = 64  # characters of a number; longer texts are not read

_SIGN, _CURRENCY = r"[-+\u2212]", r"[$\u20ac\u00a3\u00a5]"
_NUMBER = re.compile(
  rf"""
  (?P<sign>{_SIGN})? [ ]? {_CURRENCY}? [ ]? (?P<inner>{_SIGN})?
  (?P<whole>[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)?
  (?P<decimals>\.[0-9]*)?
  [ ]? (?:{_CURRENCY}|%)? (?:(?<=[0-9$%\u20ac\u00a3\u00a5])\.)?
  """,
  re.VERBOSE,
)

# `number` refuses anything but a number between the signs. Bold may begin before the mark.
_DRESS = re.compile(
  r"(?:\*\*)?([^*]+)\*\*\.?|\\boxed\{(.*)\}\.?|\$([^$]+[0-9.%}])\$\.?|\\\((.*)\\\)\.?"
)


def number(text: str) -> Fraction | None:
  """Returns the exact value of a text that is one number and nothing else, or None.

  It reads a sign, a currency sign on either side, commas between groups of three digits, decimals,
  and a final point. A percent sign is a unit, as in GSM8K's answers: 50% is 50. Words, fractions
  and expressions are no numbers.
  """
  text = text.strip()
  if len(text) > LONGEST:
    return None
  match = _NUMBER.fullmatch(text)
  if not match or (match["sign"] and match["inner"]):
    return None
  if not re.search("[0-9]", match["whole"] or match["decimals"] or ""):
    return None
  decimals = (match["decimals"] or "").rstrip("0").rstrip(".")
  value = Fraction((match["whole"] or "").replace(",", "") + decimals or "0")
  return -value if (match["sign"] or match["inner"] or "+") in "-\u2212" else value


def after_mark(text: str) -> str | None:
  """Returns the stripped text after the last `####` on its line; None without a mark."""
  _, mark, rest = text.rpartition(MARK)
  return rest.partition("\n")[0].strip() if mark else None


def final_answer(completion: Completion) -> str | None:
  """Returns the answer of a completion after its last `####`; None without one.

  A completion that is truncated within that line has none: 7 may be the beginning of 72.
  """
  ends_in_answer = "\n" not in completion.text.rpartition(MARK)[2]
  if ends_in_answer and completion.ended != STOPPED:
    return None
  return after_mark(completion.text)


def final_or_whole(completion: Completion) -> str | None:
  """Returns `final_answer`, or a whole completion without a `####` that is not truncated."""
  whole = MARK not in completion.text and completion.ended == STOPPED
  return completion.text if whole else final_answer(completion)


def answer_correct(example: Example, completion: Completion) -> float:
  """Returns 1 if the completion's last `#### x` is exactly the example's number, else 0.

  Raises:
    ValueError: the example's own answer is no number.
  """
  expected = number(example.answer)
  if expected is None:
    raise ValueError(f"the answer {example.answer[:80]!r} is no number")
  return float(answer_of(completion) == expected)


def answer_of(completion: Completion) -> Fraction | str | None:
  """Returns a completion's final answer as a number or else as a text; None without one."""
  answer = final_answer(completion)
  value = None if answer is None else number(undressed(answer))
  return answer or None if value is None else value


def undressed(text: str) -> str:
  r"""Returns a text without typesetting: `**72**`, `\boxed{72}`, `$72$`, `\$72` and `1{,}000`."""
  text = text.strip()
  for _ in range(3):  # such as bold around a box
    match = _DRESS.fullmatch(text)
    if not match:
      break
    text = next(group for group in match.groups() if group is not None).strip()
  return text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")


def well_formed(example: Example, completion: Completion) -> float:
  """Returns 1 for GSM8K's form, lines of work and then one `#### x` with a number, else 0."""
  del example
  *work, last = [line for line in completion.text.split("\n") if line.strip()] or [""]
  if completion.ended != STOPPED or not work or any(MARK in line for line in work):
    return 0.0
  answer = last.strip()
  return float(answer.startswith(MARK) and number(answer.removeprefix(MARK)) is not None)
