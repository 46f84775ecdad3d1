"""Checks each step against the worked solution (DeepSeekMath, section 4.1.3).

`Example.meta["results"]` holds the exact value of each step; the line with the answer is the step
after the last.
"""

import re

from grpo_jax.rewards import math
from grpo_jax.rewards.math import MARK, answer_correct
from grpo_jax.types import Completion, Example

_EQUATION = re.compile(
  r"(?P<left>[0-9]{1,18}) ?(?P<op>[-+*/]) ?(?P<right>[0-9]{1,18}) ?= ?\$?(?P<result>-?[0-9]{1,18})"
)

# End of the text before an equation that is only the end of a longer one.
_UNFINISHED = re.compile(r"([0-9.,]|[-+*/=] *\$?)$")

answer_of = math.answer_of  # of the last line


def steps_correct(example: Example, completion: Completion) -> list[tuple[int, float]]:
  """Returns (index of its last token, 1 or 0) for each step.

  Step k is right if the last equation of its line is true and its result is `meta["results"][k]`.
  The line with the answer is right if it comes after all steps and is correct. A line too many is
  wrong.

  Raises:
    KeyError: the data set has no step results.
    ValueError: the completion's steps are not its lines.
  """
  results = example.meta["results"]
  lines = [line for line in completion.text.split("\n") if line.strip()]
  values = []
  for step, line in enumerate(lines):
    if MARK in line:
      right = step == len(results) and answer_correct(example, completion) == 1.0
    else:
      right = step < len(results) and _result(line) == results[step]
    values.append(float(right))
  values = values or [0.0]  # a completion without a line (the stop token alone) is one wrong step
  if len(values) != len(completion.step_ends):
    raise ValueError(
      f"{len(values)} lines and {len(completion.step_ends)} steps: it scores lines, so each step "
      "must be one; use data.steps='line'"
    )
  return list(zip(completion.step_ends, values, strict=True))


def _result(line: str) -> int | None:
  """Returns the result of the equation that ends a line; None if there is none or it is false."""
  equations = list(_EQUATION.finditer(line))
  if not equations:
    return None
  last = equations[-1]
  if re.search(r"[0-9=+*/]", line[last.end() :]) or _UNFINISHED.search(line[: last.start()]):
    return None
  left, right, result = int(last["left"]), int(last["right"]), int(last["result"])
  if last["op"] == "/":
    true = right != 0 and left == right * result
  else:
    true = {"+": left + right, "-": left - right, "*": left * right}[last["op"]] == result
  return result if true else None
