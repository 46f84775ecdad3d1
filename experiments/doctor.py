"""Says whether a run's folder is whole, what the run depends on, and what of that has changed
since.

    python -m experiments.doctor DIR

DIR is the workdir of a run, on a disk or in a bucket, of one that goes on as well: what it writes
at this moment may be called damaged. The folder is only read, without an accelerator, and no code
that its config names is executed. A line for each part says how it was checked and what was found;
a second list has what DIR/inputs.json recorded of what the run depends on, and what is there now.
Steps are counted by log.every as config.json has it.

    ok         it is what was written, by its checksum where it has one
    unchecked  it is there, without a checksum; or it is not known here, and a resume compares it
    note       nothing wrong, and good to know: the run goes on, or an export is older than the last step
    damaged    it is not what was written
    missing    it should be there
    changed    what the run depends on is another now

The exit code is 1 where anything is damaged, missing or changed, else 0; 2 for a DIR that is no
run's.
"""

import collections
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from experiments import arguments
from experiments.progress import Progress
from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.reports import jsonl
from grpo_jax.run import compile_cache, console, finished, logs, manifest, provenance, writer
from grpo_jax.sandbox import model_folder
from grpo_jax.setup import defaults, weights

BAD = ("damaged", "missing", "changed")
WIDTH, PART = 110, 32  # columns: of a row, and of the name in it
ROWS = 4  # of a line that is long


class Line(NamedTuple):
  """Holds what is said of one part of a folder."""

  state: str
  part: str
  said: str


def main() -> None:
  """Examines the folder that the command line names."""
  folder = jsonl.folder_argument("experiments.doctor", __doc__)
  jax.config.update("jax_platforms", "cpu")  # an accelerator may be that of the run
  with arguments.one_line_errors():
    place = storage.place(folder)
    if not (place / "config.json").exists() and not provenance.is_run(folder):
      raise SettingError(
        f"DIR={folder}: is no run's folder: it has neither config.json nor checkpoints"
      )
    bad = show(f"{folder}: is it whole?", whole(folder))
    bad += show("what does it depend on, and is that as it was?", depends_on(folder))
  said = ", ".join(f"{count} {state}" for state, count in collections.Counter(bad).items())
  print(f"\n{said or 'all of it is whole, and nothing has changed'}")
  sys.exit(1 if bad else 0)


def show(title: str, lines: Iterator[Line]) -> list[str]:
  """Prints lines as they are found, and returns the bad states among them."""
  print(f"\n{title}", flush=True)
  bad = []
  for line in lines:
    part = line.part if len(line.part) <= PART else f"...{line.part[3 - PART :]}"
    text = console.printable(f"{line.state:<9}  {part:<{PART}}  {' '.join(line.said.split())}")
    for row in textwrap.wrap(
      text, WIDTH, subsequent_indent=" " * (PART + 13), max_lines=ROWS, placeholder=" ..."
    ):
      print(row, flush=True)
    bad += [line.state] if line.state in BAD else []
  return bad


# -- whether it is whole


def whole(folder: str) -> Iterator[Line]:
  """Yields what is found of each part of a run's folder."""
  yield _tried("config.json", lambda: _config(folder))
  sums, error = _sums(folder)
  if error:
    yield Line("damaged", manifest.NAME, error)
  for name, said in sums.items():
    now = manifest.changed(folder, name, said)
    state = "ok" if not now else "missing" if now == manifest.MISSING else "damaged"
    yield Line(
      state,
      name,
      said
      if state == "ok"
      else f"{said} were written" + (f", {now} are there" * (state != "missing")),
    )
  if not sums and not error:
    yield Line(
      "unchecked", manifest.NAME, "no checksums of whole files: the run is of before there were any"
    )
  yield from _checkpoints(folder)
  for name in writer.LOGS:
    yield _tried(name, lambda name=name: _log(folder, name))
  yield _tried("steps", lambda: _steps(folder))
  for part, check in (
    ("model", _model),
    ("export", _export),
    ("adapter", _adapter),
    ("result.json", _result),
  ):
    yield _tried(part, lambda check=check: check(folder))
  yield _tried(compile_cache.FOLDER, lambda: _compiled(folder))
  if (storage.place(folder) / "tensorboard").is_dir():
    yield Line(
      "unchecked", "tensorboard", "TensorBoard compares the checksums of its records itself"
    )
  if (storage.place(folder) / "damaged").is_dir():
    yield Line("note", "damaged", "has checkpoints that a resume found damaged and set aside")


def _tried(part: str, check: Callable[[], tuple[str, str]]) -> Line:
  """Returns what a check says of a part; whatever it raises is damage."""
  try:
    state, said = check()
    return Line(state, part, said)
  except Exception as error:  # what is damaged can fail in any way
    return Line("damaged", part, str(error) or type(error).__name__)


def _config(folder: str) -> tuple[str, str]:
  config = _read_config(folder)
  if config is None:
    return "missing", "put a copy back: without it the folder is nobody's"
  settings.check(config)
  return "ok", f"JSON, and its settings can be; steps={config.steps}"


def _read_config(folder: str) -> ConfigDict | None:
  """Returns the config of a run, with defaults for settings that are younger than it; None where
  there is none.
  """
  saved = model_folder.read_json(f"workdir={folder}", storage.place(folder), "config.json")
  return None if saved is None else ConfigDict(_over(defaults.get_config().to_dict(), saved))


def _over(old: Any, new: Any) -> Any:
  """Returns nested dicts with the values of others over theirs; lists of JSON are tuples."""
  if isinstance(old, dict) and isinstance(new, dict):
    return old | {key: _over(old.get(key), value) for key, value in new.items()}
  return tuple(_over(None, value) for value in new) if isinstance(new, list) else new


def _sums(folder: str) -> tuple[dict[str, str], str]:
  try:
    return manifest.read(folder), ""
  except SettingError as error:
    return {}, str(error)


def _checkpoints(folder: str) -> Iterator[Line]:
  from grpo_jax.run import workdir

  directory = finished.directory(folder)
  steps = finished.steps(directory)
  if not steps:
    done = workdir.steps_logged(folder)
    said = (
      f"none is complete, and metrics.jsonl tells of {done} steps"
      if done
      else "none is complete yet"
    )
    yield Line("missing" if done else "note", "checkpoints", said)
  for step in steps:
    line = _tried(f"checkpoints/{step}", lambda step=step: _checkpoint(folder, step))
    # the run goes on, and keeps the last
    is_gone = line.state == "damaged" and step not in finished.steps(directory)
    yield (
      Line("note", line.part, "was deleted meanwhile by the run, which goes on")
      if is_gone
      else line
    )
  for path in finished.incomplete(directory):
    yield Line(
      "note",
      f"checkpoints/{path.name}",
      "is being written, or was cut off; the next start removes it",
    )


def _checkpoint(folder: str, step: int) -> tuple[str, str]:
  """Compares every array with its checksum, a part of them at a time, and the logs with the lengths
  that they had.
  """
  from grpo_jax.run import arrays, checkpoint

  about = checkpoint.about(folder, step)
  for name, length in about["lengths"].items():
    path = storage.place(folder) / name
    found = storage.size(path) if path.is_file() else 0
    if found < length:
      return "damaged", f"it counts on {length} bytes of {name}, which has {found}"
  total, wrong, done = 0, [], 0
  with Progress(max(1, len(about["arrays"])), 0) as bar:
    for sums, size in arrays.read(folder, step):
      wrong += [name for name, said in sums.items() if about["arrays"].get(name) != said]
      total, done = total + size, done + len(sums)
      if done < len(about["arrays"]):
        bar.show(done, f"checkpoint {step}")
  if done != len(about["arrays"]):
    return "damaged", f"{len(about['arrays'])} arrays were saved and {done} are there"
  if wrong:
    return (
      "damaged",
      f"the numbers of {wrong[0]} are not those that were saved ({len(wrong)} of {done} arrays)",
    )
  return "ok", f"{done} arrays, {total / 1e6:,.1f} MB: all have their checksums"


def _log(folder: str, name: str) -> tuple[str, str]:
  path = storage.place(folder) / name
  found = logs.read(path)
  if found.lost:
    return "damaged", f"its last {found.lost} lines are not there any more; {found.lines} are"
  if not path.is_file():
    return "note", "is not there; a run without it has written no line"
  if said := logs.told(found.damaged, found.lines):
    return "damaged", said
  if found.sums:
    return (
      "damaged",
      f"{found.lines} lines can be read, and {found.sums} lines of {logs.sums_name(name)} cannot",
    )
  without = found.lines - found.checked
  rest = f"; {without} without a checksum can be read" if without else ""
  return (
    "ok" if not without else "unchecked",
    f"{found.checked} lines of {found.lines} have their checksums{rest}",
  )


def _steps(folder: str) -> tuple[str, str]:
  """Looks for steps that metrics.jsonl skips, and for a last one that is before the last
  checkpoint.
  """
  config = _read_config(folder)
  every = config.log.every if config else 1
  found = {
    step
    for _, line in logs.read(storage.place(folder) / "metrics.jsonl").objects
    if isinstance(step := line.get("step"), int)
  }
  end = max([finished.latest(finished.directory(folder)) or 0, *found])
  wanted = -(-end // every)
  lost = wanted - sum(0 < step <= end and (step - 1) % every == 0 for step in found)
  if lost:
    first = next(step for step in itertools.count(1, every) if step not in found)
    return "missing", f"metrics.jsonl has no line of {lost} of {wanted} steps, the first {first}"
  return "ok", f"metrics.jsonl has a line of each step to {max([0, *found])}" + (
    f", one in {every}" if every > 1 else ""
  )


def _model(folder: str) -> tuple[str, str]:
  from grpo_jax.tokenizer import reading

  path = storage.place(folder) / "model"
  if not path.is_dir():
    return "missing", "the policy's shape and tokenizer; the next start writes them"
  shape = weights.read_shape(str(path))
  reading.load(str(path), "DIR/model")
  return "ok", f"the shape ({shape.layers} layers) and the tokenizer can be read"


def _export(folder: str) -> tuple[str, str]:
  from grpo_jax.models.hf import headers

  path = storage.place(folder) / "export"
  if not path.is_dir():
    return "note", "is not there: the run has not ended, or has checkpoint.export=False"
  tensors = headers.read_headers(path)
  files = {tensor.file for tensor in tensors.values()}
  if provenance.has_gone_on(folder):
    return (
      "note",
      f"of step {provenance.ended_at(folder)}, and the run has gone on since; {len(tensors)} "
      "tensors",
    )
  return "ok", f"{len(tensors)} tensors in {len(files)} files, by their headers"


def _adapter(folder: str) -> tuple[str, str]:
  import safetensors

  file = storage.place(folder) / "adapter" / "adapter_model.safetensors"
  if not file.parent.is_dir():
    return "note", "is not there: a run with lora.rank writes it at its end"
  with storage.reading(file) as path, safetensors.safe_open(str(path), "numpy") as tensors:
    return "ok", f"{len(tensors.keys())} tensors, by their header"


def _result(folder: str) -> tuple[str, str]:
  steps = provenance.ended_at(folder)
  if steps is None and not (storage.place(folder) / "result.json").exists():
    return "note", "is not there: the run has not ended"
  return "ok", f"the run ended at step {steps}"


def _compiled(folder: str) -> tuple[str, str]:
  path = storage.place(folder) / compile_cache.FOLDER
  if not path.is_dir() or storage.in_bucket(folder):
    return (
      "note",
      "is in a bucket, and not looked at"
      if path.is_dir()
      else "is not there: the run keeps no programs here",
    )
  states = compile_cache.examine(str(path))
  damaged = [name for name, (is_whole, _) in states.items() if not is_whole]
  if damaged:
    return (
      "damaged",
      f"{len(damaged)} of {len(states)} programs; the next start removes them and compiles anew",
    )
  return "ok", f"{len(states)} programs are whole"


# -- what it depends on


def depends_on(folder: str) -> Iterator[Line]:
  """Yields what was recorded of each thing that the run's numbers depend on, and whether it is the
  same now.
  """
  from grpo_jax.distributed import inputs

  try:
    recorded = model_folder.read_json(f"workdir={folder}", storage.place(folder), inputs.NAME)
  except SettingError as error:
    yield Line("damaged", inputs.NAME, str(error))
    return
  if recorded is None:
    yield Line("unchecked", inputs.NAME, "is not there: the run is of before it was written")
    return
  try:
    now = _now(folder, recorded)
  except Exception as error:  # a config that is damaged, a folder that cannot be read
    yield Line("unchecked", inputs.NAME, f"what is there now is not known: {error}")
    now = {}
  for name in sorted(recorded | {name: "" for name in now if not name.startswith(inputs.CODE)}):
    was, found = recorded.get(name), now.get(name)
    if was is None:
      yield Line("changed", name, f"was nothing, is {found}")
    elif found is None:
      yield Line("unchecked", name, f"was {was}; a resume compares it")
    elif was == found:
      yield Line("ok", name, str(was))
    else:
      yield Line("missing" if found == ABSENT else "changed", name, f"was {was}, is {found}")


ABSENT = "not there"


def _now(folder: str, recorded: dict[str, Any]) -> dict[str, str]:
  """Returns what is there now of what was recorded; what only a run can know is left out. No code
  is executed.
  """
  from grpo_jax.distributed import inputs
  from grpo_jax.setup import depends

  found = inputs.describe_versions()
  if config := _read_config(folder):
    found |= depends.of_folders(config)
  for name in recorded.keys() - found.keys():
    if name.startswith(inputs.CODE) and name.endswith(".py"):
      found[name] = inputs.describe_file(name.removeprefix(inputs.CODE))
    elif name.startswith(inputs.CODE):
      if file := _module_file(name.removeprefix(inputs.CODE)):
        found[name] = inputs.describe_file(file)
    elif "/" in name or name in ("data.path", "data.test_path", "offline.pairs", "offline.steps"):
      found[name] = ABSENT
  return {name: ABSENT if said == "absent" else said for name, said in found.items()}


def _module_file(name: str) -> str:
  """Returns the file that a module would be imported from; "" where it is not found from here."""
  for folder in sys.path:
    for end in (".py", "/__init__.py"):
      if os.path.isfile(path := os.path.join(folder or ".", name.replace(".", "/") + end)):
        return path
  return ""


if __name__ == "__main__":
  main()
