"""Kills and resumes a run at random moments, and compares it with an undisturbed run.

    python -m experiments.measure.drill --workdir=DIR --kills=50 --config=FILE \\
      [--config.NAME=VALUE ...]

DIR/whole is the undisturbed run. DIR/killed is the other one, which starts anew whenever it
finishes. All other arguments go to experiments.run. DIR/drill.json lists every kill: when it came,
what the run was doing and at which step. The exit code is 1 if anything but timings differs.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

from experiments import arguments
from experiments.progress import Progress
from grpo_jax.io import storage
from grpo_jax.reports import jsonl

TIMINGS = ("time/", "tokens_per_s/")  # how the names of metrics begin that differ from run to run
EARLIEST = 0.3  # of the seconds of an undisturbed run; before that, Python is still importing


def left(folder: pathlib.Path) -> dict[str, Any]:
  """Returns everything but timings that a finished run leaves."""
  lines = jsonl.read(storage.place(folder / "metrics.jsonl"))
  last = max(
    (path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()),
    key=lambda p: int(p.name),
  )
  about = json.loads((last / "about" / "metadata").read_text())
  weights = sorted((folder / "export").glob("*.safetensors"))
  return {
    "metrics": [{k: v for k, v in line.items() if not k.startswith(TIMINGS)} for line in lines],
    "samples": hashlib.sha256((folder / "samples.jsonl").read_bytes()).hexdigest(),
    "checkpoint": (about["step"], about["data"], about["arrays"]),  # a checksum of every array
    "weights": [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
    "result": {
      k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k != "wall_s"
    },
  }


def differences(whole: dict[str, Any], other: dict[str, Any]) -> list[str]:
  """Returns the names of what differs between two results of `left`."""
  return [name for name in whole if whole[name] != other[name]]


def start(command: list[str], log: pathlib.Path, seconds: float | None) -> tuple[int, float | None]:
  """Runs a command and kills it after so many seconds (None: never).

  Its output is the whole of the file `log`.

  Returns:
    Its exit code, and the seconds after which it was killed here; None: it was not.
  """
  with open(log, "w") as output:
    child = subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
      return child.wait(seconds), None
    except subprocess.TimeoutExpired:
      child.kill()
      return child.wait(), seconds
    except BaseException:
      child.kill()
      raise


def doing(log: pathlib.Path) -> str:
  """Returns what a run was doing, by its last lines: "learn", "save", "starting" and so on."""
  for line in reversed(log.read_text(errors="replace").splitlines()):
    if match := re.match(r"(\w+) \.\.\.|(step|after|going on|starting)", line):
      between = match[2] in ("step", "after")
      return match[1] or ("between phases" if between else match[2])
  return "starting"


def drill(folder: pathlib.Path, kills: int, seed: int, rest: list[str]) -> list[dict[str, Any]]:
  """Kills a run many times and returns a record of each kill; exits if a run ends otherwise.

  Args:
    folder: of both runs.
    kills: how many.
    seed: of the moments.
    rest: the arguments of experiments.run.
  """
  os.environ |= {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  rest = [*rest, f"--config.compilation_cache={folder / 'cache'}"]
  command = [sys.executable, "-m", "experiments.run", *rest]
  log, killed = folder / "log.txt", folder / "killed"
  print("first the run that nothing happens to, twice", flush=True)
  for _ in range(2):  # the second has its programs compiled, like the killed runs
    shutil.rmtree(folder / "whole", ignore_errors=True)
    begun = time.monotonic()
    if code := start([*command, f"--workdir={folder / 'whole'}"], log, None)[0]:
      arguments.fail(
        f"the run ended with code {code}: "
        f"{log.read_text(errors='replace').strip().splitlines()[-1:]}",
        1,
      )
    seconds = time.monotonic() - begun
  expected, moments = left(folder / "whole"), random.Random(seed)
  records: list[dict[str, Any]] = []
  runs = 0
  shutil.rmtree(killed, ignore_errors=True)
  with Progress(kills, 0) as progress:
    while len(records) < kills or killed.exists():
      after = moments.uniform(EARLIEST, 1.0) * seconds if len(records) < kills else None
      code, killed_after = start([*command, f"--workdir={killed}"], log, after)
      if killed_after is not None and code == -signal.SIGKILL:
        record = {"run": runs, "after_s": round(killed_after, 2), "doing": doing(log)}
        records.append(record | {"steps": steps(killed)})
      elif code:
        end = log.read_text(errors="replace").strip()[-300:]
        arguments.fail(f"a run that was killed before ended with code {code}: {end}", 1)
      else:
        if differ := differences(expected, left(killed)):
          where = f"{killed} differs from {folder / 'whole'}"
          arguments.fail(f"{where} in {', '.join(differ)}, after {len(records)} kills", 1)
        shutil.rmtree(killed)
        runs += 1
      text = f"{len(records)} kills, {runs} runs as if nothing had happened"
      progress.show(min(len(records), kills), text)
  return records


def steps(folder: pathlib.Path) -> int:
  """Returns how many steps the metrics of a run tell of."""
  path = folder / "metrics.jsonl"
  text = path.read_text() if path.exists() else ""
  return max([0, *map(int, re.findall(r'^\{"step": (\d+)', text, re.MULTILINE))])


class Parser(argparse.ArgumentParser):
  """Says in one line what is wrong."""

  def error(self, message: str) -> NoReturn:
    """Ends the program with code 2."""
    arguments.fail(message)


def main() -> None:
  """Drills what the command line says, and writes DIR/drill.json."""
  parser = Parser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument("--workdir", required=True, help="folder of both runs and of drill.json")
  parser.add_argument("--kills", type=int, default=50, help="how many")
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  values, rest = parser.parse_known_args()
  if values.kills < 1:
    arguments.fail(f"--kills={values.kills}: at least 1")
  if not arguments.value_of("config", ["", *rest]):
    arguments.fail("--config is missing, as in --config=experiments/arithmetic.py")
  with arguments.one_line_errors():
    values.workdir = storage.expanded("--workdir", values.workdir)
    storage.check_disk("--workdir", values.workdir, "a drill kills runs in a folder of a disk")
  folder = pathlib.Path(values.workdir).absolute()
  try:
    folder.mkdir(parents=True, exist_ok=True)
    empty = not any(folder.iterdir())
  except OSError as error:
    arguments.fail(
      f"--workdir={values.workdir}: cannot be made ({error.strerror}); use another folder"
    )
  if not empty:
    arguments.fail(f"--workdir={values.workdir}: is not empty; give a new folder")
  records = drill(folder, values.kills, values.seed, rest)
  report = {"command": rest, "kills": records}
  (folder / "drill.json").write_text(json.dumps(report, indent=2) + "\n")
  phases = collections.Counter(kill["doing"] for kill in records)
  runs = 1 + max(kill["run"] for kill in records)
  told = ", ".join(f"{name} {count}" for name, count in phases.most_common())
  print(
    f"{len(records)} kills in {runs} runs ({told}): each left what the undisturbed run left; "
    f"{folder}/drill.json"
  )


if __name__ == "__main__":
  main()
