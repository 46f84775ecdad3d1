"""Checkpoints of a run: what is saved, and how it is restored.

    DIR/checkpoints/N/state    a `state.TrainState` for each learner, by its name, after N steps (orbax)
    DIR/checkpoints/N/data     the position in the data, as JSON
    DIR/checkpoints/N/extra    what else a run must know to go on (first evaluation, seconds, references), as JSON
    DIR/checkpoints/N/lengths  the bytes that each of the run's own logs (`workdir.OWN_LOGS`) had then, as JSON

A checkpoint is written under a temporary name and renamed when it is complete, and an old one is deleted after that:
whenever the process dies, the last complete checkpoint is there. On several hosts DIR is a shared file system.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from grpo_jax.errors import SettingError
from grpo_jax.state import TrainState
from grpo_jax.workdir import cut_back, log_lengths, not_writable, reason

LEARNER = "policy"  # the learner whose parameters another run may start from
_TEMPORARY = "*.orbax-checkpoint-tmp*"


class Restored(NamedTuple):
  """A checkpoint."""

  step: int
  states: dict[str, TrainState]  # by the name of the learner, in the shardings that were asked for
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
      raise not_writable(workdir, error) from error

  def latest(self) -> int | None:
    """The step of the last complete checkpoint."""
    return _latest(self.directory)

  def save(
    self, step: int, states: dict[str, TrainState], data: dict[str, Any], extra: dict[str, Any], wait: bool = False
  ) -> None:
    """Saves what is needed to go on after `step`; a step that is saved already is left alone.

    What the run's own logs (OWN_LOGS) hold now (flushed) belongs to the checkpoint; what is added later does not.

    Returns as soon as the arrays may be donated: they have been copied to the host, or (on a CPU, where the host is
    the device) are held, so that a donation copies them. A save before this one is waited for.

    Args:
      step: how many steps are done.
      states: of every learner, by its name.
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
          "state": ocp.args.StandardSave(states),
          "data": ocp.args.JsonSave(data),
          "extra": ocp.args.JsonSave(extra),
          "lengths": ocp.args.JsonSave(log_lengths(self.workdir)),
        }
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)
    if wait:
      self.wait()

  def restore_latest(self, abstract_states: dict[str, TrainState]) -> Restored | None:
    """The last complete checkpoint, bit for bit, or None if there is none; call it before writing to the run's logs.

    The logs are cut back to what they held when it was saved (nothing, where there is none): what a killed process
    wrote after it, half lines included, is written again. Other files of the folder are left alone.

    Args:
      abstract_states: `state.abstract(...)` of every learner: shapes, dtypes and the shardings to restore into,
        whatever the number of devices that saved.

    Raises:
      SettingError: the checkpoint cannot be read, or holds another model; says what to do.
    """
    step = self.latest()
    if step is None:
      self._cut_back({})
      return None
    items = {
      "state": ocp.args.StandardRestore(abstract_states),
      "data": ocp.args.JsonRestore(),
      "extra": ocp.args.JsonRestore(),
      "lengths": ocp.args.JsonRestore(),
    }
    try:
      for name, state in abstract_states.items():
        _check_fits(self.directory / str(step), name, state.params)
      got = self._manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:
      older = [s for s in _steps(self.directory) if s < step]
      instead = f"step {max(older)}" if older else "the start"
      raise SettingError(
        f"workdir={self.workdir}: checkpoint {self.directory / str(step)} cannot be restored ({reason(error)}); "
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

  def _cut_back(self, lengths: dict[str, int]) -> None:
    if jax.process_index() == 0:
      cut_back(self.workdir, lengths)

  @contextlib.contextmanager
  def _failures(self, step: int | None) -> Iterator[None]:
    """Turns whatever goes wrong in a save into one line that says what is safe."""
    try:
      yield
    except Exception as error:
      safe, which = self.latest(), "the checkpoint" if step is None else f"the checkpoint of step {step} or before"
      saved = "nothing was saved yet" if safe is None else f"the checkpoint of step {safe} is complete"
      raise SettingError(
        f"workdir={self.workdir}: {which} could not be written ({reason(error)}); {saved}: make the folder writable "
        "or make room on the disk, and run the same command again to go on from there"
      ) from error


def restore_params(workdir: str, abstract_params: Any, step: int | None = None) -> Any:
  """The policy's parameters in a checkpoint of another run, without its optimizer (`init_from`).

  Args:
    workdir: that run's folder; it is only read.
    abstract_params: {"policy": tree} of `ShapeDtypeStruct`s with shardings; trees that are not asked for are not read.
    step: of the checkpoint; None: the last one.

  Raises:
    SettingError: no such checkpoint, or one of another model.
  """
  _quieten()
  directory = _directory(workdir)
  step = _latest(directory) if step is None else step
  if step is None:
    raise SettingError(f"init_from={workdir}: there is no complete checkpoint in {directory}")
  item = {LEARNER: {"params": abstract_params}}
  args = ocp.args.PyTreeRestore(
    item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
  )
  try:
    _check_fits(directory / str(step), LEARNER, abstract_params)
    with ocp.PyTreeCheckpointer() as checkpointer:
      return checkpointer.restore(directory / str(step) / "state", args=args)[LEARNER]["params"]
  except Exception as error:
    raise SettingError(
      f"init_from={workdir}: checkpoint {step} cannot be read ({reason(error)}); use the model of that run, "
      "or another run"
    ) from error


def latest(workdir: str) -> int | None:
  """The step of the last complete checkpoint of a run's folder; None where there is none."""
  return _latest(_directory(workdir))


def _directory(workdir: str) -> Path:
  return Path(workdir).absolute() / "checkpoints"


def _steps(directory: Path) -> list[int]:
  """The complete checkpoints: folders that have got their final name."""
  return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit()) if directory.is_dir() else []


def _latest(directory: Path) -> int | None:
  return max(_steps(directory), default=None)


def _check_fits(path: Path, learner: str, params: Any) -> None:
  """Compares the shapes of the parameters that a checkpoint holds with those that are asked for."""

  def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(k, simple=True, separator="."): a.shape for k, a in jax.tree.leaves_with_path(tree)}

  found = ocp.PyTreeCheckpointHandler().metadata(path / "state").tree
  if learner not in found:
    raise ValueError(f"it holds {', '.join(found)} and no {learner}")
  stored = shapes(found[learner]["params"])
  for name, shape in shapes(params).items():
    if name not in stored:
      raise ValueError(f"it has no {name}")
    if stored[name] != shape:
      raise ValueError(f"{name} is {stored[name]} there and {shape} here")


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
