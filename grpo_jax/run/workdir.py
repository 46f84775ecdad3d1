"""Claims a run's folder for one config and one process, and cuts its logs back when it is resumed.

    DIR/config.json                  the config that the folder belongs to
    DIR/inputs.json                  what else its numbers depend on, see inputs.py
    DIR/lock                         locked by the process that uses the folder, and holds its name;
                                     in a bucket it exists as long as that process lives
    DIR/metrics.jsonl samples.jsonl  the run's own logs, with the checksums of their lines in
    DIR/metrics.crc samples.crc      (OWN_LOGS; see logs.py)

No other file of the folder is ever written to or cut here.
"""

import contextlib
import functools
import json
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax

from grpo_jax.aliases import Json
from grpo_jax.config import sections
from grpo_jax.distributed import hosts, inputs
from grpo_jax.errors import CheckpointError, SettingError, StorageError
from grpo_jax.io import inputs_file, storage
from grpo_jax.run import lock, logs, manifest
from grpo_jax.run.reasons import reason

# Settings that may differ when a run is resumed: they decide what is shown, and where, in how many
# microbatches and in what time the same numbers are computed (equal to rounding). So may `steps`,
# if no learning rate depends on it. `model.hub` is only in messages. With carried rollouts the mesh
# decides, too, which groups are complete first. `eval.reward` may not differ where it decides which
# prompts come (`data.redraw` below 1) or labels steps (`offline.continuations`).
MAY_CHANGE = (
  "model.hub",
  "eval",
  "data.test",
  "data.test_name",
  "data.test_path",
  "checkpoint",
  "log",
  "profile",
  "compilation_cache",
  "rewards.deadline",
  "rewards.workers",
  "environment.workers",
  "mesh",
  "model.remat",
  "learner.microbatch",
  "learner.chunk",
  "learner.sizes",
)
# The files that a run appends to; a restart cuts them back to its checkpoint.
OWN_LOGS = ("metrics.jsonl", "metrics.crc", "samples.jsonl", "samples.crc")
# The folders whose files it replaces.
OWN_FOLDERS = ("model", "export", "adapter", "checkpoints")
# The files that it writes besides its logs.
OWN_FILES = (
  inputs_file.NAME,
  inputs.SAMPLES,
  manifest.NAME,
  "result.json",
  "warnings.txt",
  "report.html",
  "samples.html",
  "curve.png",
)
ITERATIVE_FOLDERS = ("reward_model", "replay")  # those of an iterative run besides
SEEN_SECONDS = 90.0  # until all hosts see a new file; NFS may remember for 60 what was there


@contextlib.contextmanager
def locked(workdir: str) -> Iterator[Callable[[], None]]:
  """Makes the folder and keeps other runs out of it while the block runs, by a lock on DIR/lock.

  The system releases the lock when the process ends, however it ends; in a bucket it becomes stale,
  see `lock.Lease`. Process 0 of a run holds it for all of its hosts, which all see DIR.

  Yields:
    A function to call before writing what another run could write, too. It raises a StorageError if
    the lock is lost, which can happen in a bucket, or if its file was deleted, as it is with the
    folder.

  Raises:
    SettingError: another run has the lock, the folder cannot be written, or hosts have others.
  """
  error, held = None, _always
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      try:
        holder, held = _take(workdir, stack)
        if holder:
          error = SettingError(
            f"workdir={workdir}: is in use by {holder}; wait until that run ends, or use another "
            "--workdir"
          )
      except FileExistsError:
        error = SettingError(f"workdir={workdir}: is not a folder; use another --workdir")
      except OSError as cause:
        error = not_writable(workdir, cause)
    if message := hosts.text_of_process_0(str(error or "")):
      raise error or SettingError(message)
    check_seen(workdir)
    yield held


def check_seen(workdir: str) -> None:
  """Refuses a folder that is another one on some host, where the first save would wait for ever."""
  if jax.process_count() == 1 or storage.in_bucket(workdir):
    return
  path = storage.place(workdir) / hosts.text_of_process_0(f"seen-{uuid.uuid4().hex}")

  def make() -> None:
    if jax.process_index() == 0:
      path.touch()

  def look() -> None:
    end = time.monotonic() + SEEN_SECONDS
    while not path.exists():
      if time.monotonic() > end:
        raise SettingError(
          f"workdir={workdir}: host {jax.process_index()} has another folder there than host 0; "
          "use a --workdir on a disk that all hosts share, or in a bucket"
        )
      time.sleep(0.2)

  try:
    hosts.together(make)  # before any host looks: NFS would remember that it is not there
    hosts.together(look)
  finally:
    if jax.process_index() == 0:
      path.unlink(missing_ok=True)


def _take(workdir: str, stack: contextlib.ExitStack) -> tuple[str, Callable[[], None]]:
  """Locks DIR/lock until `stack` closes; returns another holder or "", and `locked`'s function."""
  if not storage.in_bucket(workdir):
    path = storage.place(workdir) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(open(path, "a+", encoding="utf-8"))
    return lock.take(file), functools.partial(storage.check_there, workdir, file)
  lease = lock.Lease(workdir)
  holder = lease.take()
  if not holder:
    stack.callback(lease.release)
    if lease.warning:
      print(f"warning: {lease.warning}", flush=True)
  return holder, functools.partial(_check_lease, workdir, lease)


def _always() -> None:
  """Accepts a lock that cannot be lost."""


def _check_lease(workdir: str, lease: lock.Lease) -> None:
  if lost := lease.check():
    raise StorageError(
      f"workdir={workdir}: {lost}; nothing more is written there; the same command goes on from "
      "the last checkpoint"
    )


def check_owner(
  workdir: str,
  config: Json,
  defaults: Json | None = None,
  unread: Collection[str] = (),
  kind: str = "online",
) -> None:
  """Refuses a folder of another config, or with files that a run would write to or replace.

  Settings of `MAY_CHANGE` may differ, and `steps` under a constant rate. A setting that came with a
  later version of the library may have its default, and one that nothing reads a new default.

  Args:
    workdir: folder of the run.
    config: of the run that is to go on there.
    defaults: of the settings that objectives and data sets have of their own, by section.
    unread: names of settings that the run does not read.
    kind: of its loop (`Experiment.kind`), which tells the folders that it writes.
  """
  storage.check("workdir", workdir)
  storage.check_reached("workdir", workdir)
  path = storage.place(workdir) / "config.json"
  try:
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
  except OSError as error:
    raise not_writable(workdir, error) from error
  except (ValueError, RecursionError) as error:
    raise CheckpointError(
      f"workdir={workdir}: {path} is not JSON ({error}); put a copy of it back, or use another "
      f"--workdir, where init_from={workdir} starts from the last checkpoint's weights"
    ) from error
  if old is not None and (changes := _changes(old, config, defaults or {}, unread)):
    raise SettingError(
      f"workdir={workdir}: belongs to another config ({changes}); use those values or another "
      "--workdir"
    )
  if old is None and (taken := _taken(workdir, kind)):
    raise CheckpointError(
      f"workdir={workdir}: holds {taken[0]} and no config.json, so it is not known whose it is, "
      "and a run would write there; put config.json back, where this is a run's folder, or use "
      "another --workdir"
    )


def _taken(workdir: str, kind: str) -> list[str]:
  """Returns what is there under the names of files and folders that a run of a kind writes."""
  folders = OWN_FOLDERS + (ITERATIVE_FOLDERS if kind == "iterative" else ())
  folder = storage.place(workdir)
  files = [name for name in (*OWN_LOGS, *OWN_FILES) if (folder / name).exists()]
  filled = (name for name in folders if (folder / name).is_dir())
  return files + [f"{name}/" for name in filled if any((folder / name).iterdir())]


def claim(workdir: str, config: Json) -> None:
  """Writes the config that owns the folder, after `check_owner` and all other checks.

  It is written under another name and renamed, so a full or read-only disk leaves the old one
  whole.
  """
  if jax.process_index() != 0:
    return
  path = storage.place(workdir) / "config.json"
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, (json.dumps(config, indent=2) + "\n").encode())
  except OSError as error:
    raise not_writable(workdir, error) from error


def log_lengths(workdir: str) -> dict[str, int]:
  """Returns the bytes of each of the run's own logs, by name."""
  return {path.name: storage.size(path) for path in _logs(workdir)}


def steps_logged(workdir: str) -> int:
  """Returns the largest step in metrics.jsonl; 0 without any."""
  steps = [
    line.get("step") for _, line in logs.read(storage.place(workdir) / "metrics.jsonl").objects
  ]
  return max([0, *(step for step in steps if isinstance(step, int))])


def cut_back(workdir: str, lengths: dict[str, int]) -> dict[str, int]:
  """Cuts each of the run's own logs to its length in `lengths`, or to nothing without one.

  Returns:
    The bytes that are missing, by the names of logs that are shorter; these are cut to whole lines.
  """
  lost = {}
  for path in _logs(workdir):
    want, size = lengths.get(path.name, 0), storage.size(path)
    if size < want:
      lost[path.name] = want - size
      want = path.read_bytes().rfind(b"\n") + 1
    if size > want:
      storage.cut(path, want)
  return lost | {
    name: want
    for name, want in lengths.items()
    if want and not (storage.place(workdir) / name).is_file()
  }


def _logs(workdir: str) -> list[storage.Path]:
  """Returns the files of OWN_LOGS that exist."""
  return [path for name in OWN_LOGS if storage.is_plain(path := storage.place(workdir) / name)]


def check_space(workdir: str, abstract_state: Any) -> None:
  """Refuses a disk without room for one more checkpoint, before anything is compiled.

  Args:
    workdir: an existing folder; in a bucket there is always room.
    abstract_state: pytree of arrays or `ShapeDtypeStruct`s.
  """
  if storage.in_bucket(workdir):
    return
  need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_state))
  free = shutil.disk_usage(workdir).free
  if free < need:
    raise SettingError(
      f"workdir={workdir}: {free / 1e6:.1f} MB are free on its disk and a checkpoint takes "
      f"{need / 1e6:.1f} MB; nothing was touched; make room or use another --workdir"
    )


def _changes(old: Json, new: Json, defaults: Json, unread: Collection[str], most: int = 6) -> str:
  """Returns the settings that differ and may not, as "name was X, is Y"; or ""."""
  old, new = sections.flat(old), sections.flat(new)
  known = {name: row.default for name, row in sections.SETTINGS.items()} | sections.flat(defaults)
  constant_rate = old.get("learner.schedule") == new.get("learner.schedule") == "constant"
  may_change = (*MAY_CHANGE, *unread, *(["steps"] if constant_rate else []))
  trains_with_it = new.get("offline.continuations", 0) > 0 or new.get("data.redraw", 1) < 1

  def is_free(name: str) -> bool:
    if trains_with_it and name in ("eval.reward", "eval.arguments"):
      return False
    return any(name == n or name.startswith(n + ".") for n in may_change)

  def show(values: Json, name: str) -> str:
    return repr(values[name]) if name in values else "absent"

  def is_new(name: str) -> bool:
    """Returns whether an older version had no such setting, and it is as if there were none."""
    if name in old or name not in known:
      return False
    default = json.loads(json.dumps(known[name]))
    return new[name] == default and type(new[name]) is type(default)

  names = sorted(
    n
    for n in old.keys() | new.keys()
    if not is_free(n) and not is_new(n) and show(old, n) != show(new, n)
  )
  changes = [f"{n} was {show(old, n)}, is {show(new, n)}" for n in names[:most]]
  if "steps" in names[:most]:
    changes.append(
      "the learning rate of every step depends on steps; with learner.schedule=constant a run can "
      "be made longer"
    )
  if len(names) > most:
    changes.append(f"and {len(names) - most} more")
  return "; ".join(changes)


def not_writable(workdir: str, error: OSError) -> SettingError:
  """Returns the error to raise if the folder cannot be written."""
  return SettingError(
    f"workdir={workdir}: cannot be written ({reason(error)}); nothing saved before was touched; "
    "make it writable, make room or use another --workdir"
  )
