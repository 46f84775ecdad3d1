"""Checkpoints of a run: what is saved, and how it is restored.

    DIR/checkpoints/N/state   a `state.TrainState` for each learner, by its name, after N steps (orbax)
    DIR/checkpoints/N/about   as JSON: `step`; `data`, the position in the data; `extra`, what else a run must know to
                              go on (first evaluation, seconds, references, sizes); `lengths`, the
                              bytes that each of the run's own logs (`workdir.OWN_LOGS`) had then;
                              `arrays`, the checksum of every array; and `checksum`, that of all
                              these
    DIR/damaged/N             a checkpoint that was found damaged, set aside

A checkpoint is written under a temporary name and renamed when it is complete (in a bucket, under
its own name, and `commit_success.txt` is written when it is), and an old one is deleted after that:
whenever the process dies, the last complete checkpoint is there. What is restored is compared with
the checksums; a checkpoint that is damaged is passed over for the one before it. On several hosts
DIR is a shared file system or in a bucket.
"""

import contextlib
import functools
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError, StorageError
from grpo_jax.io import storage
from grpo_jax.learning.state import TrainState
from grpo_jax.run import finished, orbax_logging
from grpo_jax.run.checksums import checksums
from grpo_jax.run.workdir import cut_back, log_lengths, not_writable, reason, steps_logged

LEARNER = "policy"  # the learner whose parameters another run may start from
_ABOUT = {
  "step": int,
  "data": dict,
  "extra": dict,
  "lengths": dict,
  "arrays": dict,
}  # the type of each part


class Restored(NamedTuple):
  """A checkpoint."""

  step: int
  states: dict[str, TrainState]  # by the name of the learner, in the shardings that were asked for
  data: dict[str, Any]
  extra: dict[str, Any]
  passed_over: list[str]  # the newer ones that are damaged, each with what is wrong
  lost: dict[str, int]  # bytes that a log of the run lacks, by its name


class _Found(NamedTuple):
  """What one checkpoint holds."""

  states: dict[str, TrainState]
  data: dict[str, Any]
  extra: dict[str, Any]
  lengths: dict[str, int]


class Damaged(Exception):
  """A checkpoint that is not what was saved."""


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
    self.directory = finished.directory(workdir)
    orbax_logging.orbax()
    try:
      self.directory.mkdir(parents=True, exist_ok=True)
      if jax.process_index() == 0:
        for path in finished.incomplete(self.directory):
          storage.remove(path)
      options = ocp.CheckpointManagerOptions(max_to_keep=keep)
      self._manager = ocp.CheckpointManager(self.directory, options=options)
    except OSError as error:
      raise not_writable(workdir, error) from error

  def latest(self) -> int | None:
    """The step of the last complete checkpoint."""
    return finished.latest(self.directory)

  def oldest(self) -> int:
    """The step of the oldest complete checkpoint; 0 where there is none."""
    return min(finished.steps(self.directory), default=0)

  def save(
    self,
    step: int,
    states: dict[str, TrainState],
    data: dict[str, Any],
    extra: dict[str, Any],
    wait: bool = False,
  ) -> None:
    """Saves what is needed to go on after `step`; a step that is saved already is left alone.

    What the run's own logs (OWN_LOGS) hold now (flushed) belongs to the checkpoint; what is added
    later does not.

    Returns as soon as the arrays may be donated: they have been copied to the host, or (on a CPU,
    where the host is the device) are held, so that a donation copies them. A save before this one
    is waited for.

    Args:
      step: how many steps are done.
      states: of every learner, by its name.
      data: position in the data, as JSON.
      extra: anything else, as JSON.
      wait: return only when the checkpoint is complete.

    Raises:
      StorageError: it, or the save before it, could not be written; names the step that is safe.
    """
    with self._failures(step):
      self._manager.wait_until_finished()
      if hosts.gather(step != self._manager.latest_step())[0]:
        about = {"step": step, "data": data, "extra": extra, "lengths": log_lengths(self.workdir)}
        about |= {"arrays": checksums(states)}
        about |= {"checksum": _checksum(about)}
        items = {"state": ocp.args.StandardSave(states), "about": ocp.args.JsonSave(about)}
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)
    if wait:
      self.wait()

  def restore_latest(self, abstract_states: dict[str, TrainState]) -> Restored | None:
    """The last undamaged checkpoint, bit for bit, or None if none was made; call it before writing
    to the run's logs.

    The logs are cut back to what they held when it was saved (nothing, where there is none): what a
    killed process wrote after it, half lines included, is written again. Other files of the folder
    are left alone. Damaged checkpoints that are newer are moved to DIR/damaged.

    Args:
      abstract_states: `state.abstract(...)` of every learner: shapes, dtypes and the shardings to
        restore into, whatever the number of devices that saved.

    Raises:
      SettingError: every checkpoint is damaged, or holds another model; there is none although
        steps were done.
    """
    # process 0 decides: another may see an older folder
    steps = hosts.gather(finished.steps(self.directory))[0]
    damaged: dict[int, str] = {}
    if not steps:
      if done := steps_logged(self.workdir):
        raise SettingError(
          f"workdir={self.workdir}: its metrics.jsonl tells of {done} steps and there is no "
          "checkpoint in "
          f"{self.directory}; put that folder back, or begin anew in another --workdir"
        )
      self._cut_back({})
      return None
    for step in reversed(steps):
      got, error = self._try(step, abstract_states)
      if got is not None:
        self._set_aside(damaged)
        lost = self._cut_back(got.lengths)
        passed_over = [f"checkpoint {step} is damaged ({why})" for step, why in damaged.items()]
        return Restored(step, got.states, got.data, got.extra, passed_over, lost)
      damaged[step] = error
    found = "; ".join(f"checkpoint {step}: {why}" for step, why in damaged.items())
    raise SettingError(
      f"workdir={self.workdir}: nothing in {self.directory} can be restored ({found}); put a copy "
      "of that folder back, "
      "or begin anew in another --workdir"
    )

  def _try(self, step: int, abstract_states: dict[str, TrainState]) -> tuple[_Found | None, str]:
    """The checkpoint of a step and "", or None and why it cannot be restored; the same on every
    process.
    """
    path = self.directory / str(step)
    # in three parts, after each of which it is known whether all processes succeeded: the last two
    # are collective
    try:
      about = hosts.together(functools.partial(_read_fitting, path, abstract_states))
      states = hosts.together(functools.partial(_restore, path, abstract_states))
      hosts.together(functools.partial(_compare, about["arrays"], states))
      return _Found(states, about["data"], about["extra"], about["lengths"]), ""
    except Exception as cause:  # what is damaged can fail in any way
      return None, reason(cause)

  def _set_aside(self, steps: Iterable[int]) -> None:
    """Moves damaged checkpoints to DIR/damaged, so that their steps can be saved anew."""
    if not steps:
      return
    if jax.process_index() == 0:
      folder = self.directory.with_name("damaged")
      try:
        folder.mkdir(parents=True, exist_ok=True)
        for step in steps:
          names = itertools.chain([str(step)], (f"{step}-{n}" for n in itertools.count(1)))
          name = next(name for name in names if not (folder / name).exists())
          storage.rename(self.directory / str(step), folder / name)
      except OSError as error:
        raise not_writable(self.workdir, error) from error
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices("damaged checkpoints set aside")
    self._manager.reload()

  def wait(self) -> None:
    """Returns when the last save is complete.

    Raises:
      StorageError: it could not be written; names the step that is safe.
    """
    with self._failures(None):
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save, and frees the threads."""
    try:
      self.wait()
    finally:
      self._manager.close()

  def _cut_back(self, lengths: dict[str, int]) -> dict[str, int]:
    return cut_back(self.workdir, lengths) if jax.process_index() == 0 else {}

  @contextlib.contextmanager
  def _failures(self, step: int | None) -> Iterator[None]:
    """Turns whatever goes wrong in a save into one line that says what is safe."""
    try:
      yield
    except Exception as error:
      safe, which = (
        self.latest(),
        "the checkpoint" if step is None else f"the checkpoint of step {step} or before",
      )
      saved = (
        "nothing was saved yet" if safe is None else f"the checkpoint of step {safe} is complete"
      )
      raise StorageError(
        f"workdir={self.workdir}: {which} could not be written ({reason(error)}); {saved}: make "
        "the folder writable "
        "or make room on the disk, and run the same command again to go on from there"
      ) from error


def restore_params(
  workdir: str, abstract_params: Any, step: int | None = None, learner: str = LEARNER
) -> Any:
  """A learner's parameters in a checkpoint of another run, without its optimizer; the policy's for
  `init_from`.

  Args:
    workdir: that run's folder; it is only read.
    abstract_params: {"policy": tree} of `ShapeDtypeStruct`s with shardings; trees that are not
      asked for are not read.
    step: of the checkpoint; None: the last one.
    learner: its name, one of `trees.learners`.

  Raises:
    SettingError: no such checkpoint, or one of another model.
  """
  orbax_logging.orbax()
  directory = finished.directory(workdir)
  step = finished.latest(directory) if step is None else step
  if step is None:
    raise SettingError(f"init_from={workdir}: there is no complete checkpoint in {directory}")
  item = {learner: {"params": abstract_params}}
  args = ocp.args.PyTreeRestore(
    item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
  )
  try:
    about = _read_about(directory / str(step))
    _check_fits(directory / str(step), learner, abstract_params)
    params = _read(ocp.PyTreeCheckpointHandler(), directory / str(step) / "state", args)[learner][
      "params"
    ]
    _compare(about["arrays"], {learner: {"params": params}})
    return params
  except Exception as error:  # what is damaged can fail in any way
    raise SettingError(
      f"init_from={workdir}: checkpoint {step} cannot be read ({reason(error)}); use the model of "
      "that run, or another "
      "run; where it is damaged, that run's own command goes on from the one before"
    ) from error


def about(workdir: str, step: int) -> dict[str, Any]:
  """What a checkpoint of a run says about itself.

  Raises:
    SettingError: that is damaged.
  """
  try:
    return _read_about(finished.directory(workdir) / str(step))
  except (Damaged, OSError) as error:
    raise SettingError(
      f"workdir={workdir}: checkpoint {step} cannot be read ({reason(error)}); use another"
    ) from error


def latest(workdir: str) -> int | None:
  """The step of the last complete checkpoint of a run's folder; None where there is none."""
  return finished.latest(finished.directory(workdir))


def _check_fits(path: storage.Path, learner: str, params: Any) -> None:
  """Compares the shapes of the parameters that a checkpoint holds with those that are asked for."""

  def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
      jax.tree_util.keystr(k, simple=True, separator="."): a.shape
      for k, a in jax.tree.leaves_with_path(tree)
    }

  found = ocp.PyTreeCheckpointHandler().metadata(path / "state").tree
  if learner not in found:
    raise ValueError(f"it holds {', '.join(found)} and no {learner}")
  stored = shapes(found[learner]["params"])
  for name, shape in shapes(params).items():
    if name not in stored:
      raise ValueError(f"it has no {name}")
    if stored[name] != shape:
      raise ValueError(f"{name} is {stored[name]} there and {shape} here")


def _read_about(path: storage.Path) -> dict[str, Any]:
  """What a checkpoint says about itself, once its checksum is found right."""
  try:
    about = json.loads((path / "about" / "metadata").read_bytes())
  except (ValueError, RecursionError):
    raise Damaged("about/metadata is not JSON") from None
  if not isinstance(about, dict) or about.pop("checksum", None) != _checksum(about):
    raise Damaged("about/metadata is not what was saved")
  wrong = [name for name, kind in _ABOUT.items() if not isinstance(about.get(name), kind)]
  if wrong or not all(isinstance(n, int) and n >= 0 for n in about["lengths"].values()):
    raise Damaged(f"about/metadata has no {(wrong or ['lengths'])[0]} that could be one")
  if str(about["step"]) != path.name:
    raise Damaged(f"it is that of step {about['step']}")
  return about


def _read_fitting(path: storage.Path, abstract_states: dict[str, TrainState]) -> dict[str, Any]:
  """What a checkpoint says about itself, where it holds the parameters that are asked for."""
  about = _read_about(path)
  for name, state in abstract_states.items():
    _check_fits(path, name, state.params)
  return about


def _restore(path: storage.Path, abstract_states: dict[str, TrainState]) -> dict[str, TrainState]:
  """The arrays of a checkpoint."""
  return _read(
    ocp.StandardCheckpointHandler(), path / "state", ocp.args.StandardRestore(abstract_states)
  )


def _read(handler: ocp.CheckpointHandler, path: storage.Path, args: Any) -> Any:
  """What orbax's handler restores; each process reads its own part, and none waits for another.

  The `restore` of a manager or a checkpointer ends with a barrier, at which a process that could
  read would wait for one that could not.
  """
  try:
    return handler.restore(path, args=args)
  finally:
    handler.close()


def _checksum(about: dict[str, Any]) -> str:
  """The checksum of what a checkpoint says about itself."""
  return f"{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"


def _compare(saved: dict[str, str], tree: Any) -> None:
  """Compares restored arrays with the checksums of those that were saved."""
  wrong = [name for name, checksum in checksums(tree).items() if saved.get(name) != checksum]
  if wrong:
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    raise Damaged(f"the numbers of {wrong[0]}{more} are not those that were saved")
