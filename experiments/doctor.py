"""Examines a run's folder: whether it is whole, and whether what the run depends on has changed.

    python -m experiments.doctor DIR

DIR is the workdir of a run, on a disk or in a bucket. The run may still be going; what it writes at
that moment may then be reported as damaged. The folder is only read, without an accelerator, and no
code that its config names is executed. The first list has a line for each part and how it was
checked. The second list compares what DIR/inputs.json recorded with what is there now.

    ok         it is what was written, by its checksum if it has one
    unchecked  it is there but has no checksum, or cannot be known here; a resume compares it
    note       nothing is wrong: the run continues, or an export is older than the last step
    damaged    it is not what was written
    missing    it should be there
    changed    something that the run depends on is different now

The exit code is 1 if anything is damaged, missing or changed, else 0; 2 if DIR is not a run's.
"""

import collections
import functools
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
from grpo_jax.config import sections, settings
from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.io import inputs_file, storage
from grpo_jax.reports import jsonl
from grpo_jax.run import compile_cache, console, finished, logs, manifest, provenance, writer
from grpo_jax.sandbox import model_folder
from grpo_jax.setup import defaults, weights

BAD = ("damaged", "missing", "changed")
WIDTH, PART = 110, 32  # columns of a row, and of the name in it
ROWS = 4  # at most, of a line
ABSENT = "not there"


class Line(NamedTuple):
  """Holds the state of one part of a folder."""

  state: str
  part: str
  text: str


def main() -> None:
  """Examines the folder that the command line names."""
  folder = jsonl.folder_argument("experiments.doctor", __doc__)
  jax.config.update("jax_platforms", "cpu")  # the run may be using the accelerator
  with arguments.one_line_errors():
    place = storage.place(folder)
    if not (place / "config.json").exists() and not provenance.is_run(folder):
      raise SettingError(
        f"DIR={folder}: is no run's folder: it has neither config.json nor checkpoints"
      )
    bad = show(f"{folder}: is it whole?", whole(folder))
    bad += show("what does it depend on, and is that as it was?", depends_on(folder))
  counts = ", ".join(f"{count} {state}" for state, count in collections.Counter(bad).items())
  print(f"\n{counts or 'all of it is whole, and nothing has changed'}")
  sys.exit(1 if bad else 0)


def show(title: str, lines: Iterator[Line]) -> list[str]:
  """Prints lines as they come, and returns the bad states among them."""
  print(f"\n{title}", flush=True)
  bad = []
  for line in lines:
    part = line.part if len(line.part) <= PART else f"...{line.part[3 - PART :]}"
    text = console.printable(f"{line.state:<9}  {part:<{PART}}  {' '.join(line.text.split())}")
    for row in textwrap.wrap(
      text, WIDTH, subsequent_indent=" " * (PART + 13), max_lines=ROWS, placeholder=" ..."
    ):
      print(row, flush=True)
    bad += [line.state] if line.state in BAD else []
  return bad


def whole(folder: str) -> Iterator[Line]:
  """Yields the state of each part of a run's folder."""
  yield _tried("config.json", lambda: _config(folder))
  sums = {}
  try:
    sums = manifest.read(folder)
    if not sums:
      text = "no checksums of whole files: the run is of before there were any"
      yield Line("unchecked", manifest.NAME, text)
  except GrpoError as error:
    yield Line("damaged", manifest.NAME, str(error))
  for name, written in sums.items():
    now = manifest.changed(folder, name, written)
    if not now:
      yield Line("ok", name, written)
    elif now == manifest.MISSING:
      yield Line("missing", name, f"{written} were written")
    else:
      yield Line("damaged", name, f"{written} were written, {now} are there")
  yield from _checkpoints(folder)
  for name in writer.LOGS:
    yield _tried(name, functools.partial(_log, folder, name))
  yield _tried("steps", lambda: _steps(folder))
  checks = {"model": _model, "export": _export, "adapter": _adapter, "result.json": _result}
  for part, check in checks.items():
    yield _tried(part, functools.partial(check, folder))
  yield _tried(compile_cache.FOLDER, lambda: _compiled(folder))
  if (storage.place(folder) / "tensorboard").is_dir():
    yield Line(
      "unchecked", "tensorboard", "TensorBoard compares the checksums of its records itself"
    )
  if (storage.place(folder) / "damaged").is_dir():
    yield Line("note", "damaged", "has checkpoints that a resume found damaged and set aside")


def _tried(part: str, check: Callable[[], tuple[str, str]]) -> Line:
  """Returns the result of a check; whatever it raises is damage."""
  try:
    state, text = check()
    return Line(state, part, text)
  except Exception as error:  # damage can make anything fail
    return Line("damaged", part, str(error) or type(error).__name__)


def _config(folder: str) -> tuple[str, str]:
  config = _read_config(folder)
  if config is None:
    return "missing", "put a copy back: without it the folder is nobody's"
  sections.check(config)
  return "ok", f"JSON, and its settings can be; steps={config.steps}"


def _read_config(folder: str) -> ConfigDict | None:
  """Returns the config of a run, with defaults for settings that it lacks, if it has a config."""
  saved = model_folder.read_json(f"workdir={folder}", storage.place(folder), "config.json")
  return None if saved is None else ConfigDict(_over(defaults.get_config().to_dict(), saved))


def _over(old: Any, new: Any) -> Any:
  """Returns nested dicts updated by others, in which lists of JSON become tuples."""
  if isinstance(old, dict) and isinstance(new, dict):
    return old | {key: _over(old.get(key), value) for key, value in new.items()}
  return tuple(_over(None, value) for value in new) if isinstance(new, list) else new


def _checkpoints(folder: str) -> Iterator[Line]:
  from grpo_jax.run import workdir

  directory = finished.directory(folder)
  steps = finished.steps(directory)
  if not steps:
    done = workdir.steps_logged(folder)
    if done:
      text = f"none is complete, and metrics.jsonl tells of {done} steps"
      yield Line("missing", "checkpoints", text)
    else:
      yield Line("note", "checkpoints", "none is complete yet")
  for step in steps:
    line = _tried(f"checkpoints/{step}", functools.partial(_checkpoint, folder, step))
    # a run that continues keeps only its last checkpoints
    if line.state == "damaged" and step not in finished.steps(directory):
      line = Line("note", line.part, "was deleted meanwhile by the run, which goes on")
    yield line
  for path in finished.incomplete(directory):
    text = "is being written, or was cut off; the next start removes it"
    yield Line("note", f"checkpoints/{path.name}", text)


def _checkpoint(folder: str, step: int) -> tuple[str, str]:
  """Compares every array with its checksum, and the logs with the lengths they had."""
  from grpo_jax.run import arrays, checkpoint

  about = checkpoint.about(folder, step)
  for name, length in about["lengths"].items():
    path = storage.place(folder) / name
    size = storage.size(path) if path.is_file() else 0
    if size < length:
      return "damaged", f"it counts on {length} bytes of {name}, which has {size}"
  total, wrong, done = 0, [], 0
  with Progress(max(1, len(about["arrays"])), 0) as bar:
    for sums, size in arrays.read(folder, step):
      wrong += [name for name, checksum in sums.items() if about["arrays"].get(name) != checksum]
      total, done = total + size, done + len(sums)
      if done < len(about["arrays"]):
        bar.show(done, f"checkpoint {step}")
  if done != len(about["arrays"]):
    return "damaged", f"{len(about['arrays'])} arrays were saved and {done} are there"
  if wrong:
    count = f"{len(wrong)} of {done} arrays"
    return "damaged", f"the numbers of {wrong[0]} are not those that were saved ({count})"
  return "ok", f"{done} arrays, {total / 1e6:,.1f} MB: all have their checksums"


def _log(folder: str, name: str) -> tuple[str, str]:
  path = storage.place(folder) / name
  log = logs.read(path)
  if log.lost:
    return "damaged", f"its last {log.lost} lines are not there any more; {log.lines} are"
  if not path.is_file():
    return "note", "is not there; a run without it has written no line"
  if damage := logs.told(log.damaged, log.lines):
    return "damaged", damage
  if log.sums:
    unread = f"{log.sums} lines of {logs.sums_name(name)} cannot"
    return "damaged", f"{log.lines} lines can be read, and {unread}"
  text = f"{log.checked} lines of {log.lines} have their checksums"
  if log.checked == log.lines:
    return "ok", text
  return "unchecked", f"{text}; {log.lines - log.checked} without a checksum can be read"


def _steps(folder: str) -> tuple[str, str]:
  """Looks for steps that metrics.jsonl lacks, up to the last checkpoint."""
  every = config.log.every if (config := _read_config(folder)) else 1
  log = logs.read(storage.place(folder) / "metrics.jsonl")
  logged = {step for _, line in log.objects if isinstance(step := line.get("step"), int)}
  last, saved = max([0, *logged]), finished.latest(finished.directory(folder)) or 0
  wanted = -(-max(last, saved) // every)
  lost = wanted - sum(step > 0 and (step - 1) % every == 0 for step in logged)
  if lost:
    first = next(step for step in itertools.count(1, every) if step not in logged)
    text = f"metrics.jsonl has no line of {lost} of {wanted} steps, the first {first}"
    if log.recorded == log.checked == log.lines and last >= saved - every:
      return "note", f"{text}; all that were written are there, log.every was another then"
    return "missing", text
  some = f", one in {every}" if every > 1 else ""
  return "ok", f"metrics.jsonl has a line of each step to {last}{some}"


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
    end = provenance.exported_at(folder)
    return "note", f"of step {end}, and the run has gone on since; {len(tensors)} tensors"
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
  if not path.is_dir():
    return "note", "is not there: the run keeps no programs here"
  if storage.in_bucket(folder):
    return "note", "is in a bucket, and not looked at"
  states = compile_cache.examine(str(path))
  damaged = [name for name, (is_whole, _) in states.items() if not is_whole]
  if damaged:
    count = f"{len(damaged)} of {len(states)} programs"
    return "damaged", f"{count}; the next start removes them and compiles anew"
  return "ok", f"{len(states)} programs are whole"


def depends_on(folder: str) -> Iterator[Line]:
  """Yields whether each thing that the run's numbers depend on is as it was recorded."""

  try:
    recorded = model_folder.read_json(f"workdir={folder}", storage.place(folder), inputs_file.NAME)
  except GrpoError as error:
    yield Line("damaged", inputs_file.NAME, str(error))
    return
  if recorded is None:
    yield Line("unchecked", inputs_file.NAME, "is not there: the run is of before it was written")
    return
  try:
    now = _now(folder, recorded)
  except Exception as error:  # a config that is damaged, a folder that cannot be read
    yield Line("unchecked", inputs_file.NAME, f"what is there now is not known: {error}")
    now = {}
  others = {name: "" for name in now if not name.startswith(inputs_file.CODE)}
  for name in sorted(recorded | others):
    was, value = recorded.get(name), now.get(name)
    if was is None:
      yield Line("changed", name, f"was nothing, is {value}")
    elif value is None:
      yield Line("unchecked", name, f"was {was}; a resume compares it")
    elif was == value:
      yield Line("ok", name, str(was))
    else:
      yield Line("missing" if value == ABSENT else "changed", name, f"was {was}, is {value}")


def _now(folder: str, recorded: dict[str, Any]) -> dict[str, str]:
  """Returns the present value of what was recorded, but for what only a run can know."""
  from grpo_jax.distributed import inputs
  from grpo_jax.setup import depends

  values = inputs.describe_versions()
  if config := _read_config(folder):
    values |= depends.of_folders(settings.Settings(**sections.typed(config)))
  for name in recorded.keys() - values.keys():
    if name.startswith(inputs_file.CODE) and name.endswith(".py"):
      values[name] = inputs.describe_file(name.removeprefix(inputs_file.CODE))
    elif name.startswith(inputs_file.CODE):
      if file := _module_file(name.removeprefix(inputs_file.CODE)):
        values[name] = inputs.describe_file(file)
    elif "/" in name or name in ("data.path", "data.test_path", "offline.pairs", "offline.steps"):
      values[name] = ABSENT
  return {name: ABSENT if value == "absent" else value for name, value in values.items()}


def _module_file(name: str) -> str:
  """Returns the file that a module would be imported from, or ""."""
  for folder in sys.path:
    for end in (".py", "/__init__.py"):
      if os.path.isfile(path := os.path.join(folder or ".", name.replace(".", "/") + end)):
        return path
  return ""


if __name__ == "__main__":
  main()
