"""Reads solutions with labelled steps from jsonl in the layout of PRM800K or of Math-Shepherd.

PRM800K (github.com/openai/prm800k), a solution on each line:

    {"question": {"problem": ...}, "label": {"steps": [
      {"completions": [{"text": ..., "rating": 1}, ...], "human_completion": null,
      "chosen_completion": 0}, ...]}}

A rating of 1 is label 1 and -1 is label 0. A neutral rating, 0 (neither wrong nor a step ahead), is
label 1: Lightman et al. (arXiv 2305.20050, section 2.4) leave the choice open and count it as
positive for their main results (appendix F.2), as OpenR does; TRL counts it as negative. A step
that was not rated has no label. A completion that was not chosen ends a solution of its own: the
steps before it, unlabelled because the main solution has their labels, and itself. A
human_completion, given where no completion was right, is label 1.

Math-Shepherd (arXiv 2312.08935), a solution on each line:

    {"input": "Question? Step 1: ... ки\\nStep 2: ... ки",
     "label": "Question? Step 1: ... +\\nStep 2: ... -"}

The question is the text before the first "Step 1:". The few lines without it are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_jax.data import jsonl
from grpo_jax.errors import DataError, SettingError

TAG = "ки"
FIRST_STEP = "Step 1:"
SETTING = "offline.steps"


class Solution(NamedTuple):
  """A solution with labelled steps; its text is the joined steps."""

  question: str
  steps: list[str]  # each ends in a newline, except for the last one of a complete solution
  labels: list[float | None]  # of each step: from 0 (wrong) to 1 (right), or None
  complete: bool  # whether it ends after the last step


def read(path: str) -> tuple[list[Solution], int]:
  """Returns the solutions of a file in their order, and how many lines had none."""
  if not path:
    raise SettingError(
      f"{SETTING}='': give a jsonl file with labelled steps, as PRM800K or Math-Shepherd have them"
    )
  records = jsonl.read(jsonl.split_file("train", path, SETTING))
  by_line = [parse_line(record, where) for record, where in records]
  solutions = [solution for line in by_line for solution in line]
  if not solutions:
    raise DataError(f"{SETTING}={path!r}: none of its {len(by_line)} lines has a labelled step")
  return solutions, sum(not line for line in by_line)


def parse_line(record: jsonl.Record, where: str) -> list[Solution]:
  """Returns the solutions of a line, in either layout, that have a labelled step."""
  if isinstance(record.get("question"), dict) and isinstance(record.get("label"), dict):
    solutions = parse_prm800k(record, where)
  elif isinstance(record.get("input"), str) and isinstance(record.get("label"), str):
    solutions = parse_math_shepherd(record["input"], record["label"], where)
  else:
    raise DataError(
      f'{where}: has neither "question" and "label" as PRM800K nor "input" and "label" as '
      "Math-Shepherd"
    )
  return [s for s in solutions if any(label is not None for label in s.labels)]


def parse_prm800k(record: jsonl.Record, where: str) -> list[Solution]:
  """Returns the solution of all chosen completions, and one for each that was not chosen.

  If none was chosen in the last step, its first completion ends the main solution.
  """
  try:
    question, steps = jsonl.text(record["question"], "problem", where), record["label"]["steps"]
    texts: list[str] = []
    labels: list[float | None] = []
    others: list[tuple[list[str], list[float | None]]] = []
    for step in steps:
      human, chosen = step.get("human_completion"), step["chosen_completion"]
      rated = [
        (option["text"], _label(option.get("rating"), where))
        for option in step.get("completions") or []
      ]
      main: tuple[str, float | None]
      if chosen is None and human is not None:
        main = (human["text"], 1.0)
      elif chosen is not None or rated:
        main = rated.pop(chosen or 0)
      else:
        break
      others += [([*texts, text], [*[None] * len(texts), label]) for text, label in rated]
      texts, labels = [*texts, main[0]], [*labels, main[1]]
      if chosen is None and human is None:
        break
    solved = record["label"].get("finish_reason") == "solution"
    branches = [_solution(question, *branch, False) for branch in others]
    return [_solution(question, texts, labels, solved), *branches]
  except (KeyError, TypeError, IndexError, AttributeError) as error:
    raise DataError(
      f"{where}: is not in the layout of PRM800K: {type(error).__name__}: {error}"
    ) from error


def parse_math_shepherd(text: str, labelled: str, where: str) -> list[Solution]:
  """Returns the solution of a line, in whose label + or - stands for each tag, if it has Step 1."""
  *pieces, rest = text.split(TAG)
  labels: list[float | None] = []
  place = 0
  for piece in pieces:
    place += len(piece) + 1
    sign = labelled[place - 1 : place]
    if labelled[place - 1 - len(piece) : place - 1] != piece or sign not in ("+", "-"):
      raise DataError(
        f'{where}: "label" should be "input" with + or - for each {TAG}, and is not at step '
        f"{len(labels) + 1}"
      )
    labels.append(float(sign == "+"))
  if not pieces or FIRST_STEP not in pieces[0]:
    return []
  question, mark, first = pieces[0].partition(FIRST_STEP)
  steps = [mark + first, *pieces[1:], rest]
  return [_solution(question.strip(), steps, [*labels, None], not rest.strip())]


def _label(rating: int | None, where: str) -> float | None:
  """Returns the label of a rating."""
  if rating is None:
    return None
  if rating not in (-1, 0, 1):
    raise DataError(f"{where}: a rating should be -1, 0, 1 or null, and is {rating!r:.80}")
  return float(rating >= 0)


def _solution(
  question: str, texts: Sequence[str], labels: Sequence[float | None], complete: bool
) -> Solution:
  """Returns a solution of the steps that are not blank."""
  kept = [
    (f"{text.strip()}\n", label) for text, label in zip(texts, labels, strict=True) if text.strip()
  ]
  steps = [step for step, _ in kept]
  if complete and steps:
    steps[-1] = steps[-1].rstrip()
  return Solution(question, steps, [label for _, label in kept], complete)
