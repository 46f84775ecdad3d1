"""The strict GSM8K check: the number after the last `####`, in bold or a box or not, compared
exactly.

Numbers are read by a regular expression into fractions: no floats, no evaluation of what a model
wrote.
"""

import re
from fractions import Fraction

from grpo_jax.types import STOPPED, Completion, Example

MARK = "####"
LONGEST = 64  # characters of a number; a longer text is no number

_SIGN, _CURRENCY = r"[-+\u2212]", r"[$\u20ac\u00a3\u00a5]"
_NUMBER = re.compile(
  rf"""
  (?P<sign>{_SIGN})? [ ]? {_CURRENCY}? [ ]? (?P<inner>{_SIGN})?
  (?P<whole>[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)?
  (?P<decimals>\.[0-9]*)?
  [ ]? (?:{_CURRENCY}|%)?
  """,
  re.VERBOSE,
)

# Anything but a number between the signs is left to `number` to refuse.
_DRESS = re.compile(r"\*\*([^*]+)\*\*\.?|\\boxed\{(.*)\}\.?|\$([^$]+[0-9.%}])\$\.?|\\\((.*)\\\)\.?")


def number(text: str) -> Fraction | None:
  """Returns the exact value of a text that is one number and nothing else, or None.

  A sign, a currency sign on either side, commas between groups of three digits, decimals, and a
  final point are read. A percent sign is a unit, as in GSM8K's answers: 50% is 50. Words, fractions
  and expressions are no numbers.
  """
  text = text.strip()
  if len(text) > LONGEST:
    return None
  found = _NUMBER.fullmatch(text)
  if not found or (found["sign"] and found["inner"]):
    return None
  digits = (found["whole"] or "").replace(",", "") + (found["decimals"] or "").rstrip("0").rstrip(
    "."
  )
  if not re.search("[0-9]", found["whole"] or found["decimals"] or ""):
    return None
  value = Fraction(digits or "0")
  return -value if (found["sign"] or found["inner"] or "+") in "-\u2212" else value


def after_mark(text: str) -> str | None:
  """Returns what stands after the last `####` on its line, without the white space around it; None
  without a mark.
  """
  _, mark, rest = text.rpartition(MARK)
  return rest.partition("\n")[0].strip() if mark else None


def final_answer(completion: Completion) -> str | None:
  """Returns what a completion gives as its answer after the last `####`; None if it gives none.

  A completion that was cut off within that line gives none: 7 may be the beginning of 72.
  """
  ends_in_answer = "\n" not in completion.text.rpartition(MARK)[2]
  if ends_in_answer and completion.ended != STOPPED:
    return None
  return after_mark(completion.text)


def final_or_whole(completion: Completion) -> str | None:
  """Returns `final_answer`, or the whole of a completion without a `####`; None where it was cut
  off within that.
  """
  whole = MARK not in completion.text and completion.ended == STOPPED
  return completion.text if whole else final_answer(completion)


def answer_correct(example: Example, completion: Completion) -> float:
  """1 if the completion's last `#### x` is the example's answer, exactly as numbers, else 0.

  Raises:
    ValueError: the example's own answer is no number.
  """
  expected = number(example.answer)
  if expected is None:
    raise ValueError(f"the answer {example.answer[:80]!r} is no number")
  return float(answer_of(completion) == expected)


def answer_of(completion: Completion) -> Fraction | str | None:
  """Returns a completion's final answer, a number where it is one and else its text; None where
  there is none.
  """
  answer = final_answer(completion)
  value = None if answer is None else number(undressed(answer))
  return answer if value is None else value


def undressed(text: str) -> str:
  r"""Returns a text without what sets it in type: `**72**`, `\boxed{72}`, `$72$`, `\$72` and
  `1{,}000`.
  """
  text = text.strip()
  for _ in range(3):  # such as bold around a box
    found = _DRESS.fullmatch(text)
    if not found:
      break
    text = next(group for group in found.groups() if group is not None).strip()
  return text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")


def well_formed(example: Example, completion: Completion) -> float:
  """1 if it has GSM8K's form, right or wrong: at least one line of work, then one `#### x`, a
  number, and the end.
  """
  del example
  *work, last = [line for line in completion.text.split("\n") if line.strip()] or [""]
  if completion.ended != STOPPED or not work or any(MARK in line for line in work):
    return 0.0
  return float(
    last.strip().startswith(MARK) and number(last.strip().removeprefix(MARK)) is not None
  )
