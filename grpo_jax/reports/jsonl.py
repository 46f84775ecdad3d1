"""Reads the files that a run writes line by line, and the command lines that name a run's folder."""

import json
import sys

from grpo_jax import storage
from grpo_jax.errors import SettingError


def read(path: storage.Path) -> list[dict]:
  """Returns the objects of a file with one JSON object on each line; none where there is no file.

  The last line of a run that goes on, or that was killed, may be cut off: reading ends there.
  """
  objects = []
  lines = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else []
  for line in filter(None, lines):
    try:
      objects.append(json.loads(line))
    except json.JSONDecodeError:
      break
  return objects


def folder_argument(command: str, doc: str) -> str:
  """Returns the DIR of `python -m command DIR`; ends the program with its help, or with one line of what is wrong."""
  given = sys.argv[1:]
  if {"-h", "--help"} & set(given):
    print(f"{doc}\nusage: python -m {command} DIR")
    sys.exit(0)
  try:
    for each in given:
      storage.check("DIR", each)
      storage.check_reached("DIR", each)
  except SettingError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  if len(given) != 1 or not storage.place(given[0]).is_dir():
    wrong = f"{given[0]}: no such folder" if len(given) == 1 else f"{len(given)} arguments"
    print(f"error: {wrong}; usage: python -m {command} DIR, the folder of a run", file=sys.stderr)
    sys.exit(2)
  return given[0]
