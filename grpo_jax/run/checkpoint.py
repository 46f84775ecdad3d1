"""Saves and restores the checkpoints of a run.

    DIR/checkpoints/N/state   a `TrainState` for each learner, by name, after N steps (orbax)
    DIR/checkpoints/N/about   JSON, see `checkpoint_files.About`, with its checksum
    DIR/damaged/N             a checkpoint that was damaged, set aside

A checkpoint is written under a temporary name and renamed when it is complete (in a bucket,
`commit_success.txt` is written then), and an old one is deleted after that: whenever the process
dies, the last complete checkpoint is there. What is restored is compared with the checksums; if a
checkpoint is damaged, the one before it is used. On several hosts DIR is shared or in a bucket.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from grpo_jax.distributed import hosts
from grpo_jax.errors import CheckpointError, SettingError, StorageError, no_memory
from grpo_jax.io import storage
from grpo_jax.learning.state import TrainState
from grpo_jax.models.decoder import Params
from grpo_jax.run import checkpoint_files, finished, orbax_logging
from grpo_jax.run.checkpoint_files import About, Damaged, Extra, Json
from grpo_jax.run.checksums import checksums
from grpo_jax.run.reasons import may_answer_later, reason
from grpo_jax.run.workdir import cut_back, log_lengths, not_writable, steps_logged

T = TypeVar("T")
LEARNER = "policy"  # the learner whose parameters another run may start from


class _Manager(ocp.CheckpointManager):
  """Leaves the agreement of the hosts on a signal to `signals.stop_signals`."""

  def reached_preemption(self, step: int) -> bool:
    """Returns False; jax would take `step` for a number of the calls that hosts agree by."""
    return False


class Restored(NamedTuple):
  """A checkpoint."""

  step: int
  states: dict[str, TrainState]  # by the name of the learner, with the requested shardings
  data: Json
  extra: Extra
  passed_over: list[str]  # newer checkpoints that are damaged, each with what is wrong
  lost: dict[str, int]  # bytes that a log of the run lacks, by its name


class Checkpoints:
  """Writes the checkpoints of a run in the background, and keeps the last `keep` of them.

  Every process calls every method, in the same order.
  """

  def __init__(self, workdir: str, keep: int):
    """Opens DIR/checkpoints and removes what an interrupted save left there."""
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
      self._manager = _Manager(self.directory, options=options)
    except OSError as error:
      raise not_writable(workdir, error) from error

  def latest(self) -> int | None:
    """Returns the step of the last complete checkpoint."""
    return finished.latest(self.directory)

  def oldest(self) -> int:
    """Returns the step of the oldest complete checkpoint; 0 if there is none."""
    return min(finished.steps(self.directory), default=0)

  def save(
    self, step: int, states: dict[str, TrainState], data: Json, extra: Extra, wait: bool = False
  ) -> None:
    """Saves what is needed to resume after `step`, unless that is saved already.

    The present content of the run's own logs (`OWN_LOGS`, flushed) belongs to the checkpoint.

    Waits for the previous save, and returns when the next update may overwrite the arrays: on
    accelerators they have been copied to the host; on a CPU the save still refers to them, and the
    next update then copies instead of overwriting.

    Args:
      step: the number of steps done.
      states: of every learner, by its name.
      data: position in the data, as JSON.
      extra: what else the run needs.
      wait: return only when the checkpoint is complete.

    Raises:
      StorageError: it or the save before it could not be written; names the step that is safe.
    """
    with self._failures(step):
      self._manager.wait_until_finished()
      if hosts.gather(step != self._manager.latest_step())[0]:  # process 0 decides for all
        about = About(
          step=step,
          data=data,
          extra=extra,
          lengths=log_lengths(self.workdir),
          arrays=checksums(states),
        )
        signed = {**about, "checksum": checkpoint_files.checksum(about)}
        items = {"state": ocp.args.StandardSave(states), "about": ocp.args.JsonSave(signed)}
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)
    if wait:
      self.wait()

  def restore_latest(self, abstract_states: dict[str, TrainState]) -> Restored | None:
    """Restores the last undamaged checkpoint bit for bit; None if no step was ever saved.

    Call it before writing to the run's logs: they are cut back to their lengths at the checkpoint
    (to nothing without one), since the steps after it are done again. Other files of the folder are
    left alone. Damaged checkpoints that are newer are moved to DIR/damaged.

    Args:
      abstract_states: `state.abstract(...)` of every learner: shapes, dtypes and the shardings to
        restore into, whatever the number of devices that saved.
    """
    # process 0 decides: another may see an older folder
    steps = hosts.gather(finished.steps(self.directory))[0]
    damaged: dict[int, str] = {}
    if not steps:
      if done := steps_logged(self.workdir):
        raise CheckpointError(
          f"workdir={self.workdir}: its metrics.jsonl tells of {done} steps and there is no "
          f"checkpoint in {self.directory}; put that folder back, or begin anew in another "
          "--workdir"
        )
      self._cut_back({})
      return None
    for step in reversed(steps):
      try:
        about, states = self._read(step, abstract_states)
      except (CheckpointError, StorageError):  # it may be whole
        raise
      except Exception as cause:  # what is damaged can fail in any way
        damaged[step] = reason(cause)
        continue
      self._set_aside(damaged)
      lost = self._cut_back(about["lengths"])
      passed_over = [f"checkpoint {step} is damaged ({why})" for step, why in damaged.items()]
      return Restored(step, states, about["data"], about["extra"], passed_over, lost)
    reasons = "; ".join(f"checkpoint {step}: {why}" for step, why in damaged.items())
    raise CheckpointError(
      f"workdir={self.workdir}: nothing in {self.directory} can be restored ({reasons}); put a "
      "copy of that folder back, or begin anew in another --workdir"
    )

  def _read(
    self, step: int, abstract_states: dict[str, TrainState]
  ) -> tuple[About, dict[str, TrainState]]:
    """Returns the checkpoint of a step; raises on every process if any finds it damaged."""
    path = self.directory / str(step)

    # in three parts, after each of which it is known whether all processes succeeded: the last two
    # are collective
    def on_all(read: Callable[..., T], *args: object) -> T:
      return hosts.together(functools.partial(_read_whole, path, read, *args))

    about = on_all(_read_fitting, path, abstract_states)
    states = on_all(_restore, path, abstract_states)
    on_all(checkpoint_files.compare, about["arrays"], states)
    return about, states

  def _set_aside(self, steps: Collection[int]) -> None:
    """Moves damaged checkpoints to DIR/damaged, so that their steps can be saved again."""
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
    """Turns any error in a save into one line that says what is safe."""
    try:
      yield
    except Exception as error:
      if _out_of_memory(error):
        raise
      safe = self.latest()
      which = "the checkpoint" if step is None else f"the checkpoint of step {step} or before"
      saved = (
        "nothing was saved yet" if safe is None else f"the checkpoint of step {safe} is complete"
      )
      raise StorageError(
        f"workdir={self.workdir}: {which} could not be written ({reason(error)}); {saved}: make "
        "the folder writable or make room on the disk, and run the same command again to go on "
        "from there"
      ) from error


def restore_params(
  workdir: str, abstract_params: dict[str, Params], step: int | None = None, learner: str = LEARNER
) -> dict[str, Params]:
  """Returns the parameters of a learner in a checkpoint of another run, for `init_from`.

  Args:
    workdir: that run's folder; it is only read.
    abstract_params: {"policy": tree} of `ShapeDtypeStruct`s with shardings; other trees are not
      read.
    step: of the checkpoint; None: the last one.
    learner: its name.
  """
  orbax_logging.orbax()
  directory = finished.directory(workdir)
  step = finished.latest(directory) if step is None else step
  if step is None:
    raise CheckpointError(f"init_from={workdir}: there is no complete checkpoint in {directory}")
  path = directory / str(step)
  item = {learner: {"params": abstract_params}}
  args = ocp.args.PyTreeRestore(
    item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
  )
  try:
    about = checkpoint_files.read_about(path)
    checkpoint_files.check_fits(path, learner, abstract_params)
    state = checkpoint_files.read_arrays(ocp.PyTreeCheckpointHandler(), path / "state", args)
    params = state[learner]["params"]
    checkpoint_files.compare(about["arrays"], {learner: {"params": params}})
    return params
  except Exception as error:  # what is damaged can fail in any way
    raise CheckpointError(
      f"init_from={workdir}: checkpoint {step} cannot be read ({reason(error)}); use the model of "
      "that run, or another run; where it is damaged, that run's own command goes on from the one "
      "before"
    ) from error


def about(workdir: str, step: int) -> About:
  """Returns the JSON of a checkpoint of a run."""
  try:
    return checkpoint_files.read_about(finished.directory(workdir) / str(step))
  except (Damaged, OSError) as error:
    raise CheckpointError(
      f"workdir={workdir}: checkpoint {step} cannot be read ({reason(error)}); use another"
    ) from error


def latest(workdir: str) -> int | None:
  """Returns the step of the last complete checkpoint of a run's folder; None if there is none."""
  return finished.latest(finished.directory(workdir))


def _read_fitting(path: storage.Path, abstract_states: dict[str, TrainState]) -> About:
  """Returns the JSON of a checkpoint, if it holds the parameters that are asked for."""
  about = checkpoint_files.read_about(path)
  for name, state in abstract_states.items():
    checkpoint_files.check_fits(path, name, state.params)
  return about


def _read_whole(path: storage.Path, read: Callable[..., T], *args: object) -> T:
  """Returns `read(*args)` of a checkpoint.

  Raises:
    CheckpointError: there is not enough memory for it.
    StorageError: its disk could not be read now.
    Exception: it is damaged.
  """
  try:
    return read(*args)
  except Exception as error:
    if _out_of_memory(error):
      raise CheckpointError(
        f"{path}: there is not enough memory to restore it ({reason(error)}); use more devices or "
        "hosts with more memory"
      ) from error
    if may_answer_later(path, error):
      raise StorageError(
        f"{path}: cannot be read now ({reason(error)}); nothing was changed, the same command goes "
        "on from it"
      ) from error
    raise


def _out_of_memory(error: Exception) -> bool:
  """Returns whether a host or a device had no memory left."""
  return no_memory(error) or isinstance(error, MemoryError)


def _restore(path: storage.Path, abstract_states: dict[str, TrainState]) -> dict[str, TrainState]:
  """Returns the arrays of a checkpoint."""
  args = ocp.args.StandardRestore(abstract_states)
  return checkpoint_files.read_arrays(ocp.StandardCheckpointHandler(), path / "state", args)
