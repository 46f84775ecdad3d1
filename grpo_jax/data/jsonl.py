"""Reads any file with one JSON object on each line that holds a question and an answer.

`data.path` is the file, or a folder with `train.jsonl` and `test.jsonl` (a file for each split).
The names of the fields are settings of `data.jsonl`. An answer in GSM8K's form (steps, then
`#### x` on the last line, or before a remark if x is a number) is split: the whole is the solution
and x the answer. Any other answer is both.

Multiple choice: if `data.jsonl.choices` names a field, it holds the list of options. They are shown
after the question, each on its own line with a letter ("A) 12"), and the example's answer is the
letter of the right one. The file may give the answer as a letter, as an index from 0 or as the
option's text. A line whose answer may mean two options is refused.
"""

import decimal
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage
from grpo_jax.rewards.choice import LETTERS, letter
from grpo_jax.rewards.math import MARK, after_mark, number
from grpo_jax.sandbox.model_folder import no_key_twice
from grpo_jax.types import Example

Record = Json

# Longest line; a tokenizer takes 140 times as much memory for it, and half a second a MB.
LINE_BYTES = 5 * 1000**2
# First bytes of files that are not UTF-8 text.
KINDS = {
  b"\x1f\x8b": "compressed by gzip",
  b"\x28\xb5\x2f\xfd": "compressed by zstd",
  b"PK\x03\x04": "a zip archive",
  b"PAR1": "in the format parquet",
  b"\xff\xfe": "text in UTF-16",
  b"\xfe\xff": "text in UTF-16",
}
_SURROGATE = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)  # an escaped half of a character


def settings() -> ConfigDict:
  """Returns the section `data.jsonl`: the names of the fields."""
  c = ConfigDict()
  c.question = "question"  # field of the question
  c.answer = "answer"  # field of the answer
  c.solution = ""  # field of the worked solution; empty: the answer holds it
  c.choices = ""  # field of the list of options of a multiple-choice question; empty: none
  return c


def source(split: str, path: str, cfg: ConfigDict) -> list[Example]:
  """Reads the examples of a split in the order of the file."""
  make = multiple_choice if cfg.choices else example
  return [make(record, where, cfg) for record, where in read(split_file(split, path))]


def example(record: Record, where: str, names: ConfigDict) -> Example:
  """Returns the example of a line, with its other fields in `meta`."""
  question = text(record, names.question, where, "question")
  answer = text(record, names.answer, where, "answer")
  solution = text(record, names.solution, where, "solution") if names.solution else answer
  used = (names.question, names.answer, names.solution)
  meta = {name: value for name, value in record.items() if name not in used}
  return Example(question, solution, _final_answer(answer) or answer.strip(), meta)


def _final_answer(text: str) -> str | None:
  """Returns the answer in GSM8K's form; None without one, as after a heading `#### Step 1`."""
  final, ends = after_mark(text), MARK in text.rstrip().rpartition("\n")[2]
  return final if ends or number(final or "") is not None else None


def multiple_choice(record: Record, where: str, names: ConfigDict) -> Example:
  """Returns the example of a line with options, which follow the question; its answer is a letter.

  The solution is that of the file, in its own field or before the answer's `####`; if the file has
  none, it is the letter, too.
  """
  plain, options = example(record, where, names), _options(record, names.choices, where)
  answer = record[names.answer]
  if isinstance(answer, int):
    # beside options that are numbers, it may be one of them
    equal = [i for i, x in enumerate(record[names.choices]) if x == answer and type(x) is int]
    indices = sorted({*equal, *([answer] if 0 <= answer < len(options) else [])})
  else:
    indices = _option_indices(plain.answer, options)
  if len(indices) != 1:
    letters = " or ".join(LETTERS[i] for i in indices)
    state = f"may mean {letters}" if indices else "is none of the options"
    raise DataError(
      f'{where}: field "{names.answer}" is {plain.answer[:80]!r}, which {state}; give the letter '
      f"of one of the {len(options)} options, its index from 0, or its text"
    )
  right = LETTERS[indices[0]]
  worked = names.solution or _final_answer(plain.solution)
  listed = [f"{name}) {option}" for name, option in zip(LETTERS, options)]
  question = "\n".join([plain.question, *listed])
  return Example(question, plain.solution if worked else right, right, plain.meta)


def split_file(split: str, path: str, setting: str = "data.path") -> storage.Path:
  """Returns `path` itself if it is a file, else `path/<split>.jsonl`, which must exist.

  `setting` names the path in messages.
  """
  if not path:
    raise SettingError(
      f"{setting} is empty: give a file with one JSON object a line, or a folder with "
      f"{split}.jsonl in it"
    )
  file = storage.place(path)
  if file.is_dir():
    names = sorted(
      entry.name for entry in file.iterdir() if entry.name.endswith(".jsonl") and not entry.is_dir()
    )
    file = file / f"{split}.jsonl"
    if not file.is_file():
      raise SettingError(
        f"{setting} = {path!r}: looked for {split}.jsonl in this folder, which has {_few(names)}"
      )
  if not file.is_file():
    raise SettingError(
      f"{setting} = {path!r}: no such file or folder; give a .jsonl file, or a folder of such"
    )
  return file


def read(file: storage.Path) -> list[tuple[Record, str]]:
  """Returns the object of every line that is not blank, with its file and line for messages."""
  try:
    numbered = [(number, line) for number, line in enumerate(_lines(file), 1) if line.strip()]
  except OSError as error:
    raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
  if not numbered:
    raise DataError(
      f"{file}: has no line; each should be a JSON object with a question and an answer"
    )
  return [
    (_record(line, number == 1, f"{file}, line {number}"), f"{file}, line {number}")
    for number, line in numbered
  ]


def _lines(file: storage.Path) -> Iterator[bytes]:
  """Yields the lines of a file as bytes; text would also be split at separators within JSON."""
  if not storage.in_bucket(file) and not stat.S_ISREG(os.stat(file).st_mode):
    raise DataError(
      f"{file}: is a folder, a pipe or a device; give a file, into which its lines are copied"
    )
  with storage.as_os_errors():
    opened: Any = io.BytesIO(file.read_bytes()) if storage.in_bucket(file) else open(file, "rb")
  with opened:
    number = 0
    while line := opened.readline(LINE_BYTES + 1):
      number += 1
      kind = next((kind for start, kind in KINDS.items() if line.startswith(start)), "")
      if number == 1 and kind:
        raise DataError(f"{file}: is {kind}; give text in UTF-8 with one JSON object on each line")
      if len(line) > LINE_BYTES:
        raise DataError(
          f"{file}, line {number}: has more than {LINE_BYTES} bytes; use shorter lines, or leave "
          "it out"
        )
      yield from line.splitlines()


def text(record: Record, name: str, where: str, setting: str = "") -> str:
  """Returns the field `name` of a line as text; a number is written out.

  `setting` is that of `data.jsonl` which names the field, if one does.
  """
  return _text(_field(record, name, where, setting), name, where)


def _options(record: Record, name: str, where: str) -> list[str]:
  """Returns the options of a line as texts; numbers are written out."""
  options = _field(record, name, where, "choices")
  if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
    raise DataError(
      f'{where}: field "{name}" should be a list of 2 to {len(LETTERS)} texts, and is '
      f"{json.dumps(options)[:80]}"
    )
  return [_text(option, name, where).strip() for option in options]


def _option_indices(answer: str, options: list[str]) -> list[int]:
  """Returns the options that an answer can mean, by its index, its letter or its text."""
  option_letter = letter(answer)
  return [
    i
    for i, option in enumerate(options)
    if answer in (str(i), option) or option_letter == LETTERS[i]
  ]


def _field(record: Record, name: str, where: str, setting: str) -> Any:
  """Returns the field `name` of a line, which must be there; `setting` is as in `text`."""
  if name not in record:
    other = f"; data.jsonl.{setting}={name!r} names it" if setting else ""
    raise DataError(f'{where}: no field "{name}"; the line has {_few(sorted(record))}{other}')
  return record[name]


def _text(value: object, name: str, where: str) -> str:
  """Returns a value of the field `name` as text that is not empty."""
  is_whole = isinstance(value, int) and not isinstance(value, bool)  # of any size
  if is_whole or (isinstance(value, float) and math.isfinite(value)):
    value = f"{decimal.Decimal(repr(value)):f}"  # 0.00001, not 1e-05
  if not isinstance(value, str) or not value.strip():
    raise DataError(
      f'{where}: field "{name}" should be text that is not empty, and is {json.dumps(value)[:80]}'
    )
  return value


def _record(line: bytes, first: bool, where: str) -> Record:
  """Returns the object on a line; the first line of a file may begin with a byte order mark."""
  try:
    record = json.loads(
      line.decode("utf-8-sig" if first else "utf-8"), object_pairs_hook=no_key_twice
    )
  except UnicodeDecodeError as error:
    raise DataError(f"{where}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
  except (ValueError, RecursionError) as error:
    reason = str(error)
    if isinstance(error, json.JSONDecodeError):
      reason = f"{error.msg} after {error.doc[: error.pos][-30:]!r}"
    raise DataError(
      f"{where}: is not JSON: {reason}; each line should be one JSON object"
    ) from error
  if not isinstance(record, dict):
    raise DataError(f"{where}: should be a JSON object, and is {type(record).__name__}")
  if _SURROGATE.search(line) and not _is_text(record):
    raise DataError(
      f"{where}: holds half of a character, an escape from \\ud800 to \\udfff without its other "
      "half; write the character itself"
    )
  return record


def _is_text(record: Record) -> bool:
  """Returns whether all text of a line can be written as UTF-8."""
  try:
    json.dumps(record, ensure_ascii=False).encode()
  except UnicodeEncodeError:
    return False
  return True


def _few(names: list[str]) -> str:
  """Returns the first eight of some names, and how many more there are."""
  if not names:
    return "none"
  return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
