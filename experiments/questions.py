"""Reads the questions of a file that sample.py is given."""

import json
from typing import Any, NamedTuple

from grpo_jax.config import kinds
from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage


class Question(NamedTuple):
  """Holds a question, and what an environment may need besides it."""

  text: str
  answer: str
  meta: dict[str, Any]  # the other fields of its line


def read(file: str) -> list[Question]:
  """Returns the questions of a file: its lines, or the fields of each line in .jsonl."""
  storage.check("--file", file)
  if not file.endswith((".txt", ".jsonl")):
    raise SettingError(f"--file={file!r}: use a name that ends in .txt or .jsonl")
  try:
    lines = storage.place(file).read_text(encoding="utf-8-sig").split("\n")
  except (OSError, ValueError) as error:
    raise SettingError(
      f"--file={file!r}: cannot be read ({str(error)[:200]}); give a file in UTF-8"
    ) from error
  numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
  if not numbered:
    raise DataError(f"--file={file!r}: has no question; write one on each line")
  if file.endswith(".txt"):
    return [Question(line, "", {}) for _, line in numbered]
  return [_question(line, f"--file={file!r}, line {number}") for number, line in numbered]


def _question(line: str, where: str) -> Question:
  """Returns the question of a line of JSON."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    record = None
  fields = record if isinstance(record, dict) else {}
  answer = "" if fields.get("answer") is None else fields["answer"]
  for name in ("question", "prompt"):
    if kinds.is_text(text := fields.get(name)) and text.strip():
      meta = {key: value for key, value in fields.items() if key not in (name, "answer")}
      return Question(text, answer if kinds.is_text(answer) else json.dumps(answer), meta)
  raise DataError(
    f'{where}: use an object with a text "question" or "prompt", as in {{"question": "What is '
    f'2+3?"}}'
  )
