"""Reads a run's files of JSON lines, and command lines that name a run's folder."""

import sys
from collections.abc import Callable, Mapping

from grpo_jax.aliases import Json
from grpo_jax.config import kinds
from grpo_jax.errors import GrpoError
from grpo_jax.io import storage
from grpo_jax.run import logs
from grpo_jax.run.reasons import reason

STEP = {"step": kinds.Whole()}
NUMBER = kinds.Number()


Metrics = dict[str, float | None]  # a line of metrics.jsonl; None: not a number


def read(
  path: storage.Path, rows: Mapping[str, kinds.Kind] = {}, last: int | None = None
) -> list[Json]:
  """Returns the objects of a file with one JSON object a line; none if there is no file.

  Damaged lines are left out, and a warning on stderr counts them. The last line of a run that is
  running or was killed may be cut off, which does not count as damage.

  Args:
    path: of the file. If there is a file of checksums for it, lines are compared with them.
    rows: allowed values of some keys; an object with another value is damaged. null counts as
      absent.
    last: only the lines that begin in the last `last` bytes are read; None: all.
  """
  log = logs.read(path, last)
  objects, wrong = [], []
  for number, value in log.objects:
    if all(value.get(key) is None or row.fits(value[key]) for key, row in rows.items()):
      objects.append(value)
    else:
      wrong.append(number)
  if text := logs.told(sorted(log.damaged + wrong), log.lines):
    it = "it is" if text.startswith("1 ") else "they are"
    print(f"warning: {path}: {text}; {it} left out", file=sys.stderr, flush=True)
  return objects


def metrics(path: storage.Path) -> list[Metrics]:
  """Returns the lines of a metrics.jsonl that have a step; a value that is no number is None."""
  lines = [line for line in read(path, STEP) if line.get("step") is not None]
  return [
    {name: value if NUMBER.fits(value) else None for name, value in line.items()} for line in lines
  ]


def folder_command(
  command: str, doc: str, draw: Callable[[str], storage.Path | None], nothing: str
) -> None:
  """Draws the DIR of `python -m command DIR` and prints where; `nothing` says what it lacks."""
  folder = folder_argument(command, doc)
  try:
    print(draw(folder) or f"{folder}: {nothing}")
  except OSError as error:
    print(f"error: {folder}: {reason(error)}", file=sys.stderr)
    sys.exit(2)


def folder_argument(command: str, doc: str) -> str:
  """Returns the DIR of `python -m command DIR`, or exits with help or a line about the mistake."""
  arguments = sys.argv[1:]
  if {"-h", "--help"} & set(arguments):
    print(f"{doc}\nusage: python -m {command} DIR")
    sys.exit(0)
  try:
    for argument in arguments:
      storage.check("DIR", argument)
      storage.check_reached("DIR", argument)
  except GrpoError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  if len(arguments) != 1 or not storage.place(arguments[0]).is_dir():
    one = len(arguments) == 1
    wrong = f"{arguments[0]}: no such folder" if one else f"{len(arguments)} arguments"
    print(f"error: {wrong}; usage: python -m {command} DIR, the folder of a run", file=sys.stderr)
    sys.exit(2)
  return arguments[0]
