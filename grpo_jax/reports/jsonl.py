"""Reads the files that a run writes line by line, and the command lines that name a run's folder."""

import sys
from collections.abc import Mapping
from typing import Any

from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.run import logs

STEP = {"step": kinds.Whole()}
NUMBER = kinds.Number()


def read(path: storage.Path, rows: Mapping[str, kinds.Kind] = {}) -> list[dict[str, Any]]:
  """Returns the objects of a file with one JSON object on each line; none where there is no file.

  Damaged lines are left out, and a warning on stderr counts them. The last line of a run that goes
  on, or that was
  killed, may be cut off: that is no damage.

  Args:
    path: of the file; where there is a file of checksums beside it, they are compared.
    rows: what some keys may be; an object in which one is another value counts as damaged, null as
      not there.
  """
  found = logs.read(path)
  whole, wrong = [], []
  for number, value in found.objects:
    fits = all(value.get(key) is None or row.fits(value[key]) for key, row in rows.items())
    whole += [value] if fits else []
    wrong += [] if fits else [number]
  if said := logs.told(sorted(found.damaged + wrong), found.lines):
    it = "it is" if said.startswith("1 ") else "they are"
    print(f"warning: {path}: {said}; {it} left out", file=sys.stderr, flush=True)
  return whole


def metrics(path: storage.Path) -> list[dict[str, float | None]]:
  """Returns the lines of a metrics.jsonl, each with its step; values that are no numbers of a run
  are None.
  """
  lines = [line for line in read(path, STEP) if line.get("step") is not None]
  return [
    {name: value if NUMBER.fits(value) else None for name, value in line.items()} for line in lines
  ]


def folder_argument(command: str, doc: str) -> str:
  """Returns the DIR of `python -m command DIR`; ends the program with its help, or with one line of
  what is wrong.
  """
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
