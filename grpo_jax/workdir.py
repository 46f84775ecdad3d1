"""A run's folder: which config it belongs to, and the logs in it that a restart cuts back.

    DIR/config.json                  the config that the folder belongs to
    DIR/metrics.jsonl samples.jsonl  the run's own logs (OWN_LOGS)

No other file of the folder is ever written to or cut here.
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError

# Settings that may differ when a run goes on: those that only say what is shown, and where and in how many
# microbatches the same numbers are computed (equal to rounding). So may `steps`, where no learning rate depends on it.
MAY_CHANGE = (
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


def claim(workdir: str, config: ConfigDict) -> None:
  """Makes the folder and writes the config that owns it, or checks that it is this config's folder.

  Settings of `MAY_CHANGE` may differ, and `steps` under a constant learning rate; config.json then takes the new
  values. It is written under another name and renamed, so a full or read-only disk is found here and leaves the old
  one whole.

  Raises:
    SettingError: the folder cannot be written, belongs to another config (says which settings differ), or holds a
      file under the name of a log that no run wrote.
  """
  path = Path(workdir) / "config.json"
  new = json.loads(config.to_json_best_effort())
  try:
    old = json.loads(path.read_text()) if path.exists() else None
  except OSError as error:
    raise not_writable(workdir, error) from error
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
      raise not_writable(workdir, error) from error


def log_lengths(workdir: str) -> dict[str, int]:
  """Bytes that each of the run's own logs holds, by name."""
  return {path.name: path.stat().st_size for path in _logs(workdir)}


def cut_back(workdir: str, lengths: dict[str, int]) -> None:
  """Cuts each of the run's own logs to its `lengths`, 0 where it has none: what came later is written again."""
  for path in _logs(workdir):
    if path.stat().st_size > lengths.get(path.name, 0):
      os.truncate(path, lengths.get(path.name, 0))


def _logs(workdir: str) -> list[Path]:
  """Those of OWN_LOGS that are there."""
  return [path for name in OWN_LOGS if (path := Path(workdir) / name).is_file()]


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


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
  """The leaves of nested dicts by their dotted names."""
  if not isinstance(tree, dict):
    return {name: tree}
  return {k: v for key, sub in tree.items() for k, v in _flat(sub, f"{name}.{key}" if name else key).items()}


def _changes(old: dict[str, Any], new: dict[str, Any], most: int = 6) -> str:
  """The settings that differ and may not, as "name was X, is Y"; empty where there are none."""
  old, new = _flat(old), _flat(new)
  constant_rate = old.get("learner.schedule") == new.get("learner.schedule") == "constant"
  may_change = (*MAY_CHANGE, "steps") if constant_rate else MAY_CHANGE

  def is_free(name: str) -> bool:
    return any(name == n or name.startswith(n + ".") for n in may_change)

  def show(values: dict[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "absent"

  names = sorted(n for n in old.keys() | new.keys() if not is_free(n) and show(old, n) != show(new, n))
  said = [f"{n} was {show(old, n)}, is {show(new, n)}" for n in names[:most]]
  if "steps" in names[:most]:
    said.append("the learning rate of every step depends on steps unless learner.schedule is constant")
  return "; ".join(said + ([f"and {len(names) - most} more"] if len(names) > most else []))


def not_writable(workdir: str, error: OSError) -> SettingError:
  """The error to raise where the folder does not take a file."""
  return SettingError(
    f"workdir={workdir}: cannot be written ({reason(error)}); nothing saved before was touched; make it writable, "
    "make room or use another --workdir"
  )


def reason(error: BaseException) -> str:
  """The cause in a few words: the system's own, where there is one."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  if code := re.search(r"os_error_code='(\d+)'", str(error)):
    return os.strerror(int(code[1]))
  lines = str(error).strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__
