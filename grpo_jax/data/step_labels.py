"""Reads solutions whose steps were labelled, from jsonl in the layout of PRM800K or of
Math-Shepherd.

PRM800K (github.com/openai/prm800k), a line a solution:

    {"question": {"problem": ...}, "label": {"steps": [
      {"completions": [{"text": ..., "rating": 1}, ...], "human_completion": null,
      "chosen_completion": 0}, ...]}}

A rating of 1 is label 1 and -1 is label 0. A neutral one, 0 (neither wrong nor a step ahead), is
label 1: Lightman et al. (arXiv 2305.20050, section 2.4) leave the choice to who reads the labels,
and count it as positive for their main results (appendix F.2), as OpenR does; TRL counts it as
negative. A step that was not rated has no label. A completion that was not chosen ends a solution
of its own: the steps before it, unlabelled there since they have their labels in the main one, and
itself. A human_completion, which stands where none was right, is label 1.

Math-Shepherd (arXiv 2312.08935), a line a solution:

    {"input": "Question? Step 1: ... ки\\nStep 2: ... ки", "label": "Question? Step 1: ... +\\nStep
    2: ... -"}

The question is what stands before the first "Step 1:". That data set has a few lines without it:
they are left out.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from grpo_jax.data import jsonl
from grpo_jax.errors import SettingError

TAG = "ки"
FIRST_STEP = "Step 1:"
SETTING = "offline.steps"


class Solution(NamedTuple):
  """A solution whose steps were labelled; its text is the joined steps."""

  question: str
  steps: list[str]  # each ends in a newline, but for the last one of a solution that is complete
  labels: list[float | None]  # of each step: from 0 (wrong) to 1 (right), or None
  complete: bool  # whether it comes to its end after the last step


def read(path: str) -> tuple[list[Solution], int]:
  """Returns the solutions of a file in their order, and how many lines gave none.

  Raises:
    SettingError: there is no such file, no solution in it, or a line that is in neither of the
      layouts.
  """
  if not path:
    raise SettingError(
      f"{SETTING}='': give a jsonl file with labelled steps, as PRM800K or Math-Shepherd have them"
    )
  records = jsonl.read(jsonl.split_file("train", path))
  by_line = [of_line(record, where) for record, where in records]
  found = [solution for of in by_line for solution in of]
  if not found:
    raise SettingError(f"{SETTING}={path!r}: none of its {len(by_line)} lines has a labelled step")
  return found, sum(not of for of in by_line)


def of_line(record: dict[str, Any], where: str) -> list[Solution]:
  """Returns the solutions of a line that have a labelled step, in whichever layout the line is.

  Raises:
    SettingError: in neither, or a field of it is not what it should be.
  """
  if isinstance(record.get("question"), dict) and isinstance(record.get("label"), dict):
    found = of_prm800k(record, where)
  elif isinstance(record.get("input"), str) and isinstance(record.get("label"), str):
    found = of_math_shepherd(record["input"], record["label"], where)
  else:
    raise SettingError(
      f'{where}: has neither "question" and "label" as PRM800K nor "input" and "label" as '
      "Math-Shepherd"
    )
  return [each for each in found if any(label is not None for label in each.labels)]


def of_prm800k(record: dict[str, Any], where: str) -> list[Solution]:
  """Returns the main solution of a line, which has all chosen completions, and one for each that
  was not chosen.

  Where none was chosen in the last step, its first completion ends the main solution.

  Raises:
    SettingError: a field that is missing or of another kind.
  """
  try:
    question, steps = jsonl.text(record["question"], "problem", where), record["label"]["steps"]
    texts, labels, others = [], [], []
    for step in steps:
      offered, human, chosen = (
        step.get("completions") or [],
        step.get("human_completion"),
        step["chosen_completion"],
      )
      rated = [(each["text"], _label(each.get("rating"), where)) for each in offered]
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
    return [
      _solution(question, texts, labels, solved),
      *(_solution(question, *each, False) for each in others),
    ]
  except (KeyError, TypeError, IndexError, AttributeError) as error:
    raise SettingError(
      f"{where}: is not as PRM800K has it: {type(error).__name__}: {error}"
    ) from error


def of_math_shepherd(text: str, labelled: str, where: str) -> list[Solution]:
  """Returns the solution of a line; none where there is no "Step 1:".

  Raises:
    SettingError: `labelled` is not `text` with + or - in place of every tag.
  """
  *pieces, rest = text.split(TAG)
  labels: list[float | None] = []
  place = 0
  for piece in pieces:
    place += len(piece) + 1
    sign = labelled[place - 1 : place]
    if labelled[place - 1 - len(piece) : place - 1] != piece or sign not in ("+", "-"):
      raise SettingError(
        f'{where}: "label" should be "input" with + or - for each {TAG}, and is not at step '
        f"{len(labels) + 1}"
      )
    labels.append(float(sign == "+"))
  if not pieces or FIRST_STEP not in pieces[0]:
    return []
  question, first, of_first = pieces[0].partition(FIRST_STEP)
  return [
    _solution(
      question.strip(), [first + of_first, *pieces[1:], rest], [*labels, None], not rest.strip()
    )
  ]


def _label(rating: Any, where: str) -> float | None:
  """The label of a rating.

  Raises:
    SettingError: it is none of -1, 0, 1 and null.
  """
  if rating is None:
    return None
  if rating not in (-1, 0, 1):
    raise SettingError(f"{where}: a rating should be -1, 0, 1 or null, and is {rating!r:.80}")
  return float(rating >= 0)


def _solution(
  question: str, texts: Sequence[str], labels: Sequence[float | None], complete: bool
) -> Solution:
  """A solution of the steps that are not blank."""
  steps = [
    (f"{text.strip()}\n", label) for text, label in zip(texts, labels, strict=True) if text.strip()
  ]
  written = [text for text, _ in steps]
  if complete and written:
    written[-1] = written[-1].rstrip()
  return Solution(question, written, [label for _, label in steps], complete)
