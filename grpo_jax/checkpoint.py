"""A run's folder: whose it is, its checkpoints, and how a run is stopped and goes on.

    DIR/config.json            the config that owns the folder
    DIR/checkpoints/N/state    parameters and optimizer after N steps (orbax)
    DIR/checkpoints/N/data     the position in the data, as JSON
    DIR/checkpoints/N/extra    what else a loop must know to go on (source of the reference ...), as JSON
    DIR/checkpoints/N/lengths  the bytes that each of the run's own logs (OWN_LOGS) had then, as JSON

A checkpoint is written under a temporary name and renamed when it is complete, and an old one is deleted after that:
whenever the process dies, the last complete checkpoint is there. On several hosts DIR is a shared file system.
"""

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError

# Settings that may differ when a run goes on: those that only say how long, what is shown, and where and in which
# pieces the same numbers are computed (equal to rounding).
MAY_CHANGE = (
  "steps",
  "eval",
  "checkpoint",
  "log",
  "profile",
  "compilation_cache",
  "mesh",
  "model.remat",
  "learner.microbatch",
  "learner.chunk",
)
# The files that a run appends to and that a restart cuts back to its checkpoint: no other file is ever cut.
OWN_LOGS = ("metrics.jsonl", "samples.jsonl")
_TEMPORARY = "*.orbax-checkpoint-tmp*"


class Restored(NamedTuple):
  """A checkpoint."""

  step: int
  state: Any  # a pytree like the one asked for, in its shardings
  data: dict[str, Any]
  extra: dict[str, Any]


class Checkpoints:
  """The checkpoints of a run: written in the background, the last `keep` are kept.

  Every process calls every method, in the same order.
  """

  def __init__(self, workdir: str, keep: int):
    """Opens DIR/checkpoints and removes what an interrupted save left there.

    Raises:
      SettingError: keep is not positive; the folder cannot be made.
    """
    if keep < 1:
      raise SettingError(f"checkpoint.keep={keep}: keep at least 1")
    self.workdir = workdir
    self.directory = _directory(workdir)
    _quieten()
    try:
      self.directory.mkdir(parents=True, exist_ok=True)
      if jax.process_index() == 0:
        for path in self.directory.glob(_TEMPORARY):
          shutil.rmtree(path, ignore_errors=True)
      options = ocp.CheckpointManagerOptions(max_to_keep=keep)
      self._manager = ocp.CheckpointManager(self.directory, options=options)
    except OSError as error:
      raise _not_writable(workdir, error) from error

  def latest(self) -> int | None:
    """The step of the last complete checkpoint."""
    return _latest(self.directory)

  def save(self, step: int, state: Any, data: dict[str, Any], extra: dict[str, Any], wait: bool = False) -> None:
    """Saves what is needed to go on after `step`; a step that is saved already is left alone.

    What the run's own logs (OWN_LOGS) hold now (flushed) belongs to the checkpoint; what is added later does not.

    Returns as soon as the arrays may be donated: they have been copied to the host, or (on a CPU, where the host is
    the device) are held, so that a donation copies them. A save before this one is waited for.

    Args:
      step: how many steps are done.
      state: pytree of arrays.
      data: position in the data, as JSON.
      extra: anything else, as JSON.
      wait: return only when the checkpoint is complete.

    Raises:
      SettingError: it, or the save before it, could not be written; names the step that is safe.
    """
    with self._failures(step):
      self._manager.wait_until_finished()
      if step != self._manager.latest_step():
        items = {
          "state": ocp.args.StandardSave(state),
          "data": ocp.args.JsonSave(data),
          "extra": ocp.args.JsonSave(extra),
          "lengths": ocp.args.JsonSave({path.name: path.stat().st_size for path in self._logs()}),
        }
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)
    if wait:
      self.wait()

  def restore_latest(self, abstract_state: Any) -> Restored | None:
    """The last complete checkpoint, bit for bit, or None if there is none; call it before writing to OWN_LOGS.

    These are cut back to what they held when it was saved (nothing, where there is none): what a killed process
    wrote after it, half lines included, is written again. Other files of the folder are left alone.

    Args:
      abstract_state: `state.abstract(...)`: shapes, dtypes and the shardings to restore into, whatever the number of
        devices that saved.

    Raises:
      SettingError: the checkpoint cannot be read, or holds another model; says what to do.
    """
    step = self.latest()
    if step is None:
      self._cut_back({})
      return None
    items = {
      "state": ocp.args.StandardRestore(abstract_state),
      "data": ocp.args.JsonRestore(),
      "extra": ocp.args.JsonRestore(),
      "lengths": ocp.args.JsonRestore(),
    }
    try:
      _check_fits(self.directory / str(step), abstract_state.params)
      got = self._manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:
      older = [s for s in _steps(self.directory) if s < step]
      instead = f"step {max(older)}" if older else "the start"
      raise SettingError(
        f"workdir={self.workdir}: checkpoint {self.directory / str(step)} cannot be restored ({_reason(error)}); "
        f"remove that folder to go on from {instead}"
      ) from error
    self._cut_back(got.lengths)
    return Restored(step, got.state, got.data, got.extra)

  def wait(self) -> None:
    """Returns when the last save is complete.

    Raises:
      SettingError: it could not be written; names the step that is safe.
    """
    with self._failures(None):
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save, and frees the threads."""
    try:
      self.wait()
    finally:
      self._manager.close()

  def _logs(self) -> list[Path]:
    """Those of OWN_LOGS that are there."""
    return [path for name in OWN_LOGS if (path := Path(self.workdir) / name).is_file()]

  def _cut_back(self, lengths: dict[str, int]) -> None:
    if jax.process_index() == 0:
      for path in self._logs():
        if path.stat().st_size > lengths.get(path.name, 0):
          os.truncate(path, lengths.get(path.name, 0))

  @contextlib.contextmanager
  def _failures(self, step: int | None) -> Iterator[None]:
    """Turns whatever goes wrong in a save into one line that says what is safe."""
    try:
      yield
    except Exception as error:
      safe, which = self.latest(), "the checkpoint" if step is None else f"the checkpoint of step {step} or before"
      saved = "nothing was saved yet" if safe is None else f"the checkpoint of step {safe} is complete"
      raise SettingError(
        f"workdir={self.workdir}: {which} could not be written ({_reason(error)}); {saved}: make the folder writable "
        "or make room on the disk, and run the same command again to go on from there"
      ) from error


def restore_params(workdir: str, abstract_params: Any) -> Any:
  """The parameters in the last checkpoint of another run, without its optimizer (`init_from`).

  Args:
    workdir: that run's folder; it is only read.
    abstract_params: {"policy": tree} of `ShapeDtypeStruct`s with shardings; trees that are not asked for are not read.

  Raises:
    SettingError: no checkpoint, or one of another model.
  """
  _quieten()
  directory = _directory(workdir)
  step = _latest(directory)
  if step is None:
    raise SettingError(f"init_from={workdir}: there is no complete checkpoint in {directory}")
  item = {"params": abstract_params}
  args = ocp.args.PyTreeRestore(
    item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
  )
  try:
    _check_fits(directory / str(step), abstract_params)
    with ocp.PyTreeCheckpointer() as checkpointer:
      return checkpointer.restore(directory / str(step) / "state", args=args)["params"]
  except Exception as error:
    raise SettingError(
      f"init_from={workdir}: checkpoint {step} cannot be read ({_reason(error)}); use the model of that run, "
      "or another run"
    ) from error


def claim_workdir(workdir: str, config: ConfigDict) -> None:
  """Makes the folder and writes the config that owns it, or checks that it is this config's folder.

  Settings of `MAY_CHANGE` may differ; config.json then takes the new values. It is written under another name and
  renamed, so a full or read-only disk is found here and leaves the old one whole.

  Raises:
    SettingError: the folder cannot be written, belongs to another config (says which settings differ), or holds a
      file under the name of a log that no run wrote.
  """
  path = Path(workdir) / "config.json"
  new = json.loads(config.to_json_best_effort())
  try:
    old = json.loads(path.read_text()) if path.exists() else None
  except OSError as error:
    raise _not_writable(workdir, error) from error
  except ValueError as error:
    raise SettingError(f"workdir={workdir}: {path} is not JSON ({error}); use another --workdir") from error
  if old is not None and (changes := _changes(old, new)):
    raise SettingError(
      f"workdir={workdir}: belongs to another config ({changes}); use those values or another --workdir"
    )
  if old is None and (taken := [name for name in OWN_LOGS if (Path(workdir) / name).exists()]):
    raise SettingError(
      f"workdir={workdir}: holds {taken[0]} and no config.json, so it is not a run's folder, and a run would write to "
      "that file; use another --workdir"
    )
  if jax.process_index() == 0:
    temporary = path.with_name("config.json.tmp")
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      with open(temporary, "w") as f:
        f.write(json.dumps(new, indent=2) + "\n")
        f.flush()
        os.fsync(f.fileno())
      temporary.replace(path)
    except OSError as error:
      with contextlib.suppress(OSError):
        temporary.unlink()
      raise _not_writable(workdir, error) from error


def check_space(workdir: str, abstract_state: Any) -> None:
  """Refuses a disk that has no room for one more checkpoint, before anything is compiled.

  Args:
    workdir: an existing folder.
    abstract_state: pytree of arrays or `ShapeDtypeStruct`s.

  Raises:
    SettingError: says how much is free and how much a checkpoint takes.
  """
  need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_state))
  free = shutil.disk_usage(workdir).free
  if free < need:
    raise SettingError(
      f"workdir={workdir}: {free / 1e6:.1f} MB are free on its disk and a checkpoint takes {need / 1e6:.1f} MB; "
      "nothing was touched; make room or use another --workdir"
    )


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[int], str]]:
  """Lets SIGTERM and SIGINT end a run between two steps, on every host at the same one.

  with stop_signals() as stopping:
    for step in ...:
      ...
      if signal_name := stopping(step): save, say `how_to_go_on()`, leave

  `stopping(step)` is called by every process, once in every step, and returns the name of the signal, or "". The
  first signal only asks; a second SIGINT raises KeyboardInterrupt at once. On several hosts jax's preemption service
  has SIGTERM and agrees on a step that none has passed; a SIGINT is handed to it. Main thread only.
  """
  several = jax.process_count() > 1
  asked = []

  def handler(number, _):
    if asked and number == signal.SIGINT:
      raise KeyboardInterrupt
    if not asked:
      name = signal.Signals(number).name
      os.write(2, f"\n{name}: this step is finished and saved first; Ctrl-C again leaves at once\n".encode())
      if several:
        os.kill(os.getpid(), signal.SIGTERM)
    asked.append(number)

  def stopping(step: int) -> str:
    if several and not multihost_utils.reached_preemption_sync_point(step):
      return ""
    return signal.Signals(asked[0]).name if asked else "SIGTERM" if several else ""

  numbers = (signal.SIGINT,) if several else (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield stopping
  finally:
    for number, old in before.items():
      signal.signal(number, old)


def how_to_go_on() -> str:
  """One line with the command that goes on from here: the one that this process was started by."""
  return f"to go on, run the same command again: {shlex.join(sys.orig_argv)}"


def _directory(workdir: str) -> Path:
  return Path(workdir).absolute() / "checkpoints"


def _steps(directory: Path) -> list[int]:
  """The complete checkpoints: folders that have got their final name."""
  return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit()) if directory.is_dir() else []


def _latest(directory: Path) -> int | None:
  return max(_steps(directory), default=None)


def _check_fits(path: Path, params: Any) -> None:
  """Compares the shapes of the parameters that a checkpoint holds with those that are asked for."""

  def shapes(tree):
    return {jax.tree_util.keystr(k, simple=True, separator="."): a.shape for k, a in jax.tree.leaves_with_path(tree)}

  stored = shapes(ocp.PyTreeCheckpointHandler().metadata(path / "state").tree["params"])
  for name, shape in shapes(params).items():
    if name not in stored:
      raise ValueError(f"it has no {name}")
    if stored[name] != shape:
      raise ValueError(f"{name} is {stored[name]} there and {shape} here")


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
  if not isinstance(tree, dict):
    return {name: tree}
  return {k: v for key, sub in tree.items() for k, v in _flat(sub, f"{name}.{key}" if name else key).items()}


def _changes(old: dict[str, Any], new: dict[str, Any], most: int = 6) -> str:
  """What differs, outside of MAY_CHANGE, as "name was X, is Y"."""
  old, new = _flat(old), _flat(new)

  def free(name):
    return any(name == n or name.startswith(n + ".") for n in MAY_CHANGE)

  def show(values, name):
    return repr(values[name]) if name in values else "absent"

  names = sorted(n for n in old.keys() | new.keys() if not free(n) and show(old, n) != show(new, n))
  parts = [f"{n} was {show(old, n)}, is {show(new, n)}" for n in names[:most]]
  return "; ".join(parts + ([f"and {len(names) - most} more"] if len(names) > most else []))


def _not_writable(workdir: str, error: OSError) -> SettingError:
  return SettingError(
    f"workdir={workdir}: cannot be written ({_reason(error)}); nothing saved before was touched; make it writable, "
    "make room or use another --workdir"
  )


def _reason(error: BaseException) -> str:
  """The cause in a few words: the system's, where there is one."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  if code := re.search(r"os_error_code='(\d+)'", str(error)):
    return os.strerror(int(code[1]))
  lines = str(error).strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


def _quieten() -> None:
  """Leaves only warnings of what orbax and tensorstore print: their errors are raised here, as one line each."""
  logging.getLogger("absl").addFilter(_worth_printing)
  logging.getLogger("asyncio").addFilter(_not_left_behind)
  warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # writes not begun by then
  sys.unraisablehook = _unraisable


def _worth_printing(record: logging.LogRecord) -> bool:
  return record.levelno == logging.WARNING or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_left_behind(record: logging.LogRecord) -> bool:
  """False for the writes of a failed save (tasks, futures, gathered futures) beside the one that failed it."""
  return not re.search("exception was never retrieved|was destroyed but it is pending", record.getMessage())


def _unraisable(event: Any) -> None:
  """Silent on what tensorstore's threads report when their event loop has ended with the first failed write."""
  if not (isinstance(event.exc_value, RuntimeError) and str(event.exc_value) == "Event loop is closed"):
    sys.__unraisablehook__(event)
