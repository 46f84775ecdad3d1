"""Any file with one JSON object a line that holds a question and an answer.

`data.path` is the file, or a folder with `train.jsonl`, `test.jsonl` (one file a split). The names of the fields are
settings of `data.jsonl`. An answer in GSM8K's form (steps, then `#### x`) is taken apart: the whole is the solution
and x the answer. Any other answer is both.
"""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from grpo_jax.errors import SettingError
from grpo_jax.types import Example

MARK = "####"


def source(split: str, path: str, cfg) -> list[Example]:
  """The examples of a split, in the file's order.

  Args:
    split: name of the file in a folder; a path that is a file is read whatever the split.
    path: `data.path`.
    cfg: the data section; `cfg.jsonl.question` and `cfg.jsonl.answer` name the fields, and `cfg.jsonl.solution` the
      field of the worked solution ("": the answer holds it).

  Raises:
    SettingError: no such file, or a line that is no JSON object or lacks a field, with its number.
  """
  names = cfg.jsonl

  def example(row: dict[str, Any], where: str) -> Example:
    question, answer = text(row, names.question, where), text(row, names.answer, where)
    solution = text(row, names.solution, where) if names.solution else answer
    meta = {k: v for k, v in row.items() if k not in (names.question, names.answer, names.solution)}
    return Example(question, solution, final_answer(answer) or answer.strip(), meta)

  return read(split_file(split, path), example)


def split_file(split: str, path: str) -> pathlib.Path:
  """`path` itself if it is a file, else `path/<split>.jsonl`, which must exist."""
  if not path:
    raise SettingError(
      f"data.path is empty: give a file with one JSON object a line, or a folder with {split}.jsonl in it"
    )
  file = pathlib.Path(path)
  if file.is_dir():
    found = sorted(each.name for each in file.glob("*.jsonl"))
    file = file / f"{split}.jsonl"
    if not file.is_file():
      raise SettingError(f"data.path = {path!r}: looked for {split}.jsonl in this folder, which has {_few(found)}")
  if not file.is_file():
    raise SettingError(f"data.path = {path!r}: no such file or folder; give a .jsonl file, or a folder of such")
  return file


def read(file: pathlib.Path, example: Callable[[dict[str, Any], str], Example]) -> list[Example]:
  """`example(row, where)` of every line that is not blank; `where` names file and line for errors."""
  examples = [example(row, where) for row, where in _rows(file)]
  if not examples:
    raise SettingError(f"{file}: has no line; each should be a JSON object with a question and an answer")
  return examples


def text(row: dict[str, Any], name: str, where: str) -> str:
  """The field `name` of a row as text; a number is written out."""
  if name not in row:
    raise SettingError(f'{where}: no field "{name}"; the line has {_few(sorted(row))}')
  value = row[name]
  if isinstance(value, (int, float)) and not isinstance(value, bool):
    value = str(value)
  if not isinstance(value, str) or not value.strip():
    raise SettingError(f'{where}: field "{name}" should be text that is not empty, and is {json.dumps(value)[:80]}')
  return value


def final_answer(solution: str) -> str:
  """What follows the last `####`; empty if there is none."""
  return solution.rpartition(MARK)[2].strip() if MARK in solution else ""


def _rows(file: pathlib.Path) -> Iterator[tuple[dict[str, Any], str]]:
  try:
    lines = file.read_bytes().splitlines()  # of bytes: splitlines() of text also cuts at separators that JSON may hold
  except OSError as error:
    raise SettingError(f"{file}: cannot be read: {error.strerror}") from error
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    where = f"{file}, line {number}"
    try:
      row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
      raise SettingError(f"{where}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
      raise SettingError(f"{where}: is not JSON: {error}; each line should be one JSON object") from error
    if not isinstance(row, dict):
      raise SettingError(f"{where}: should be a JSON object, and is {type(row).__name__}")
    yield row, where


def _few(names: list[str]) -> str:
  return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"
