"""Reads the files of a model's folder, none of which is trusted: they may come from anybody.

A file is read if it lies in the folder, is not too large, and is JSON whose values fit a table of
keys; anything else is a `DataError` of one line. A link may lead to another place in the folder.
The cache of the Hugging Face hub consists of links, from `models--NAME/snapshots/REVISION` to
`models--NAME/blobs`: in such a folder a link may lead anywhere in its own `models--NAME`.

The argument `where` of these functions is the setting with its value, such as "init_from=DIR"; each
message starts with it.
"""

import collections
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_jax.aliases import Json
from grpo_jax.config.kinds import Form, Kind, Whole
from grpo_jax.errors import DataError
from grpo_jax.io import storage

CONFIG_BYTES = 10 * 1000**2  # of config.json and its like; real ones have a few thousand
INDEX_BYTES = 20 * 1000**2  # of model.safetensors.index.json; the largest have 9 million
TOKENIZER_BYTES = 40 * 1000**2  # of tokenizer.json; the largest have 34 million
DEPTH = 40  # levels of nested objects and lists
DIGITS = 100  # of a whole number; the one that transformers writes for "no limit" has 31
TOKENS = 2**24  # upper bound of token ids
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # only an escape can write half of a surrogate pair


def list_of(row: Kind, most: int = 10_000, least: int = 0) -> Form:
  """Returns the kind of lists of `least` to `most` values that each fit `row`."""

  def fits(value: object) -> bool:
    return isinstance(value, list) and least <= len(value) <= most and all(map(row.fits, value))

  return Form(f"a list of {least} to {most}, each {row.expects}", fits)


def either(*rows: Kind) -> Form:
  """Returns the kind of values that fit at least one of the rows."""
  return Form(", or ".join(row.expects for row in rows), lambda x: any(row.fits(x) for row in rows))


TEXT = Form("a text", lambda x: isinstance(x, str))
SWITCH = Form("true or false", lambda x: isinstance(x, bool))
OBJECT = Form("an object {...}", lambda x: isinstance(x, dict))
TOKEN = Whole(0, TOKENS - 1)
TOKEN_IDS = either(TOKEN, list_of(TOKEN, 100))
NAMES = Form(
  "an object of texts",
  lambda x: isinstance(x, dict) and all(isinstance(v, str) for v in x.values()),
)


def check(
  where: str, name: str, values: Mapping[str, object], table: Mapping[str, Kind], within: str = ""
) -> None:
  """Refuses the first value that does not fit the table's row for its key; null counts as absent.

  Args:
    where: the setting and its value.
    name: of the file.
    values: the object in the file, or a part of it.
    table: the allowed values by key; other keys may have any value.
    within: the key of that part, with a dot at its end.
  """
  for key, row in table.items():
    if (value := values.get(key)) is not None and not row.fits(value):
      raise DataError(f"{where}: {name} has {within}{key}={shown(value)}; {row.expects} would work")


def find(where: str, folder: storage.Path, name: str) -> storage.Path | None:
  """Returns the real path of the file `name` of a folder; None if there is no such file.

  A link that leads out of the folder is refused. A bucket has no links.
  """
  if storage.in_bucket(folder):
    return file if (file := folder / name).is_file() else None
  home, real = os.path.realpath(folder), os.path.realpath(folder / name)
  cache, revisions = os.path.split(os.path.dirname(home))
  if revisions == "snapshots" and os.path.basename(cache).startswith("models--"):
    home = cache
  if os.path.commonpath([home, real]) != home:
    raise DataError(
      f"{where}: {name} is a link that leads out of the folder, to {shown(real)}; put the file "
      "there"
    )
  return storage.place(real) if os.path.isfile(real) else None


def read_bytes(where: str, folder: storage.Path, name: str, most: int) -> bytes | None:
  """Returns the content of a file of at most `most` bytes; None if there is no such file."""
  file = find(where, folder, name)
  if file is None:
    return None
  try:
    with storage.as_os_errors():
      check_size(where, file, name, most)
      return file.read_bytes()
  except OSError as error:
    raise DataError(
      f"{where}: {name} cannot be read ({first_line(error)}); download it again"
    ) from error


def read_text(where: str, folder: storage.Path, name: str, most: int = CONFIG_BYTES) -> str | None:
  """Returns the text of a file in UTF-8; None if there is no such file."""
  content = read_bytes(where, folder, name, most)
  try:
    return None if content is None else content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise DataError(
      f"{where}: {name} cannot be read ({first_line(error)}); download it again"
    ) from error


def check_size(where: str, file: storage.Path, name: str, most: int) -> None:
  """Refuses a file that is larger than any real one, before it is read."""
  if (size := storage.size(file)) > most:
    raise DataError(f"{where}: {name} has {size} bytes; at most {most} would work")


def read_json(where: str, folder: storage.Path, name: str, most: int = CONFIG_BYTES) -> Json | None:
  """Returns the object in a JSON file of a folder; None if there is no such file.

  JSON that is not an object is refused, as is JSON that is nested too deeply or contains a repeated
  key, a number that is not finite, or half of a surrogate pair.
  """
  text = read_text(where, folder, name, most)
  if text is None:
    return None
  try:
    value = json.loads(
      text,
      object_pairs_hook=no_key_twice,
      parse_float=_number,
      parse_int=_integer,
      parse_constant=_not_finite,
    )
    if not isinstance(value, dict):
      raise ValueError(f"it holds {shown(value)} and no object")
    if depth(value) > DEPTH:
      raise ValueError(f"nested deeper than {DEPTH} levels")
    if _SURROGATE.search(text):
      json.dumps(value, ensure_ascii=False).encode("utf-8")
  except RecursionError as error:
    raise DataError(
      f"{where}: {name} is not JSON (nested deeper than {DEPTH} levels); download it again"
    ) from error
  except ValueError as error:
    raise DataError(
      f"{where}: {name} is not JSON ({first_line(error)}); download it again"
    ) from error
  return value


def no_key_twice(pairs: list[tuple[str, Any]]) -> Json:
  """Returns a JSON object of these keys and values, for `json.loads`.

  Raises:
    ValueError: a key is repeated. Programs differ in whether they take its first or last value.
  """
  values = dict(pairs)
  if len(values) < len(pairs):
    repeated = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
    raise ValueError(f"the key {shown(repeated)} is there twice")
  return values


def _number(digits: str) -> float:
  if not math.isfinite(value := float(digits)):
    raise ValueError(f"{shown(digits)} is too large for a number")
  return value


def _integer(digits: str) -> int:
  if len(digits) > DIGITS:
    raise ValueError(f"a number of {len(digits)} digits")
  return int(digits)


def _not_finite(name: str) -> None:
  raise ValueError(f"{name} is no number of JSON")


def depth(value: object) -> int:
  """Returns the number of levels of nested objects and lists."""
  levels, level = 0, _containers([value])
  while level:
    level = _containers(x for outer in level for x in _members(outer))
    levels += 1
  return levels


def _containers(values: Iterable[object]) -> list[dict | list]:
  return [value for value in values if isinstance(value, dict | list)]


def _members(container: dict | list) -> Iterable[object]:
  return container.values() if isinstance(container, dict) else container


def shown(value: object) -> str:
  """Returns a value for a message: in one line, shortened if it is long."""
  if isinstance(value, dict | list) and depth(value) > DEPTH:
    return "a deeply nested value"
  text = repr(value)
  return text if len(text) <= 80 else text[:76] + " ..."


def first_line(error: BaseException | str) -> str:
  """Returns the first line of an error's text, shortened and without control characters."""
  line = (str(error).splitlines() or [""])[0][:200]
  return "".join(c if c.isprintable() else "\ufffd" for c in line)
