"""Checks answers of reasoning-gym's tasks by the task's own scorer.

Some scorers evaluate an answer, by Python's `eval` or sympy's `parse_expr`, which would run code
that a model wrote. Before those an answer must have the form of a list or an expression (FORMS): it
then holds no names except variables and functions of mathematics, no attribute, and no power that
takes long.
"""

import math
import re

from grpo_jax.types import STOPPED, Completion, Example

LONGEST = 10_000  # characters of an answer; longer ones are not scored
_TAGS = ("<answer>", "</answer>")

# Nothing in these patterns is matched in two ways, else a wrong answer could take for ever.
_NUMBER = r"[0-9]{1,40}+(?![0-9])(?:\.[0-9]{1,40}+(?![0-9]))?"
_FUNCTION = (
  r"(?:sin|cos|tan|sec|csc|cot|sinh|cosh|tanh|asin|acos|atan|exp|log|ln|sqrt|pi)\b|[A-Za-z]\b"
)
_LIST = re.compile(r"(?:[\[\](),\sA-Z_]|-?[0-9]{1,12}\b|'[\w.*]{0,80}'|\"[\w.*]{0,80}\")*")
_SUM = re.compile(rf"(?:{_NUMBER}|[-+/()\s]|\*(?!\s*\*))*")
_EXPONENT = r"(?:[0-9]{1,2}(?![0-9.])|\(-?[0-9]{1,2}(?:/[0-9]{1,2})?\))"
_POWER = rf"(?<=[A-Za-z)])\s?\*\*\s?{_EXPONENT}(?!\s*\*\*)"
_FORMULA = re.compile(rf"(?:{_POWER}|{_FUNCTION}|{_NUMBER}|[-+/()\s]|\*(?!\s*\*))*")
_RATIO = re.compile(r"\s*[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:/[0-9]{1,18})?\s*")

# Tasks whose scorer evaluates an answer or reads a number that may take forever (1e999999999 as a
# fraction).
FORMS = {
  "binary_matrix": _LIST,
  "n_queens": _LIST,
  "spiral_matrix": _LIST,
  "string_insertion": _LIST,
  "countdown": _SUM,
  "puzzle24": _SUM,
  "simple_integration": _FORMULA,
  "intermediate_integration": _FORMULA,
  "polynomial_multiplication": _FORMULA,
  "coin_flip": _RATIO,
}
_BRACKET_POWER = re.compile(r"\)\s*\*\*\s*\(?-?([0-9]{1,2})")
MOST_POWER = 100  # product of the exponents of brackets: one may be a power of another


def given_answer(completion: Completion, answer_in: str) -> str | None:
  """Returns the stripped answer of a completion; None without one.

  Args:
    completion: if it is truncated, it has no last line.
    answer_in: "tags": inside the last `<answer>...</answer>`; "line": the last line that is not
      blank.
  """
  if answer_in == "line":
    lines = completion.text.split("\n") if completion.ended == STOPPED else []
    answer = next((line.strip() for line in reversed(lines) if line.strip()), "")
  else:
    before, closed, _ = completion.text.rpartition(_TAGS[1])
    answer = before.rpartition(_TAGS[0])[2].strip() if closed and _TAGS[0] in before else ""
  return answer if 0 < len(answer) <= LONGEST else None


def solved(example: Example, completion: Completion) -> float:
  """Returns the task's score of the completion's answer: 1 is right, less is partial credit.

  It is 0 without an answer, if the scorer raises an error, and if the answer must not be evaluated.

  Raises:
    KeyError: the example is not of data set reasoning_gym.
  """
  score, task = example.meta["score"], example.meta["task"]
  answer = given_answer(completion, example.meta["answer_in"])
  if answer is None or not harmless(task, answer):
    return 0.0
  try:
    value = float(score(answer))
  except Exception:  # scorers parse an answer in their own ways, and raise errors of any kind
    return 0.0
  return min(max(value, 0.0), 1.0)


def harmless(task: str, answer: str) -> bool:
  """Returns whether the scorer of a task may see an answer; see FORMS."""
  form = FORMS.get(task)
  if form is None:
    return True
  if len(answer) > LONGEST // 10:
    return False
  exponents = [max(1, int(exponent)) for exponent in _BRACKET_POWER.findall(answer)]
  return math.prod(exponents) <= MOST_POWER and form.fullmatch(answer) is not None
