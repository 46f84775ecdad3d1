"""Reads the questions of a file that sample.py is given."""

import json

from grpo_jax.config import kinds
from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage


def read(file: str) -> list[str]:
  """Returns the questions of a file: its lines, or a field of each line in .jsonl."""
  storage.check("--file", file)
  if not file.endswith((".txt", ".jsonl")):
    raise SettingError(f"--file={file!r}: use a name that ends in .txt or .jsonl")
  try:
    lines = storage.place(file).read_text(encoding="utf-8").split("\n")
  except (OSError, ValueError) as error:
    raise SettingError(
      f"--file={file!r}: cannot be read ({str(error)[:200]}); give a file in UTF-8"
    ) from error
  numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
  if not numbered:
    raise DataError(f"--file={file!r}: has no question; write one on each line")
  if file.endswith(".txt"):
    return [line for _, line in numbered]
  return [_question(line, f"--file={file!r}, line {number}") for number, line in numbered]


def _question(line: str, where: str) -> str:
  """Returns the question of a line of JSON."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    record = None
  fields = record if isinstance(record, dict) else {}
  for text in (fields.get("question"), fields.get("prompt")):
    if kinds.is_text(text) and text.strip():
      return text
  raise DataError(
    f'{where}: use an object with a text "question" or "prompt", as in {{"question": "What is '
    f'2+3?"}}'
  )
