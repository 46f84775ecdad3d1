"""Reads the files that a run writes line by line."""

import json
import pathlib


def read(path: pathlib.Path) -> list[dict]:
  """Returns the objects of a file with one JSON object on each line; none where there is no file.

  The last line of a run that goes on, or that was killed, may be cut off: reading ends there.
  """
  objects = []
  lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
  for line in filter(None, lines):
    try:
      objects.append(json.loads(line))
    except json.JSONDecodeError:
      break
  return objects
