"""Reads what a run wrote line by line."""

import json
import pathlib


def read(path: pathlib.Path) -> list[dict]:
  """The objects of a file with one JSON object a line; none where there is no file.

  A run that is going on, or that was killed, may have cut its last line off: reading ends there.
  """
  rows = []
  lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
  for line in filter(None, lines):
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      break
  return rows
