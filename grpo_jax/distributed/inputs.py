"""Gathers what the numbers of a run depend on, as names with short texts; DIR/inputs.json keeps
them.

    version of jax            0.10.2
    code of grpo_jax          the digest of all of its files
    code of my_reward.py      of a file that a setting names, and of each module of a user's that it imported
    data.path                 1312 bytes and a digest; of a folder, each of its files under data.path/NAME
    init_from/config.json     likewise, of each file of a folder of weights or of a tokenizer
    training data             how many examples, and digests of the first and the last one
    jax_enable_x64            a switch of jax that changes numbers

All hosts of a run must have the same ones, and the same settings (`check_hosts`). When a run is
resumed, what has changed is told (`record`). Settings are not in inputs.json: DIR/config.json has
them, and workdir.py compares them.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import platform
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.io import storage

NAME = "inputs.json"  # in a run's folder
CODE = "code of "
PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "numpy",
  "ml_dtypes",
  "grain",
  "tokenizers",
  "orbax-checkpoint",
)
SWITCHES = (
  "jax_enable_x64",
  "jax_default_matmul_precision",
  "jax_default_prng_impl",
  "jax_threefry_partitionable",
  "jax_numpy_dtype_promotion",
)
# "config_config" is what absl calls the file of --config, whose settings are compared by
# themselves.
NOT_USERS = ("__main__", "__mp_main__", "grpo_jax", "experiments", "config_config")
WHOLE_BYTES = 1 << 30  # of a file that is digested as a whole; of a larger one PIECES are
PIECES, PIECE_BYTES = (
  256,
  1 << 18,
)  # spread evenly: weights that were trained differ nearly everywhere
# of a folder, whose contents are digested; where there are more, their names and sizes are
MOST_FILES = 100
LONGEST = 120  # characters of a value in a message
MOST_SHOWN = 3  # differences in a message


def digest(content: bytes) -> str:
  """Returns 16 hexadecimal digits that tell `content` from any other."""
  return hashlib.sha256(content).hexdigest()[:16]


def of_settings(config: ConfigDict) -> dict[str, str]:
  """Returns every setting by its dotted name."""
  return {
    name: repr(value) for name, value in _flat(json.loads(config.to_json_best_effort())).items()
  }


def of_versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages that compute, jax's switches, and the digest
  of grpo_jax.
  """
  found = {"version of python": platform.python_version()}
  found |= {f"version of {name}": importlib.metadata.version(name) for name in PACKAGES}
  found |= {name: str(getattr(jax.config, name)) for name in SWITCHES}
  folder = pathlib.Path(__file__).parents[1]
  files = sorted(folder.rglob("*.py"), key=str)
  code = b"".join(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() for file in files)
  return found | {f"{CODE}grpo_jax": digest(code)}


def of_code(named: Mapping[str, str]) -> dict[str, str]:
  """Returns the digest of each Python file of a user's that was loaded.

  Args:
    named: those that settings name, by the names there: the digest of each as it was when it was
      loaded. Modules that those files imported are found among all that are loaded; installed
      packages are left out.
  """
  found = {f"{CODE}{name}": text for name, text in named.items()}
  for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(".py") and _is_users(name, file):
      found.setdefault(f"{CODE}{name}", of_file(pathlib.Path(file)))
  return found


def of_file(path: Any) -> str:
  """Returns the size and the digest of a file on a disk or in a bucket; "absent" where there is
  none.
  """
  try:
    with storage.as_os_errors():
      path = storage.place(path)
      if storage.in_bucket(path):
        about = storage.files().info(str(path))
        return (
          f"{about['size']} bytes, "
          f"{about.get('crc32c') or about.get('md5Hash') or about.get('etag')}"
        )
      return _of_disk(pathlib.Path(path))
  except FileNotFoundError:
    return "absent"
  except OSError as error:
    return f"cannot be read: {error.strerror or error}"


def of_path(setting: str, path: str) -> dict[str, str]:
  """Returns what a file holds, or each file of a folder, under the name of the setting that names
  it; {} for "".
  """
  if not path:
    return {}
  place = storage.place(path)
  try:
    with storage.as_os_errors():
      if not place.is_dir():
        return {setting: of_file(place)}
      files = sorted(
        (file for file in place.iterdir() if file.name[0] != "." and file.is_file()), key=str
      )
      if len(files) <= MOST_FILES:
        return {f"{setting}/{file.name}": of_file(file) for file in files}
      sizes = [(file.name, storage.size(file)) for file in files]
  except OSError as error:
    return {setting: f"cannot be read: {error.strerror or error}"}
  return {
    setting: f"{len(files)} files, {sum(n for _, n in sizes)} bytes, {digest(repr(sizes).encode())}"
  }


def of_examples(name: str, examples: Sequence[Any]) -> dict[str, str]:
  """Returns how many examples there are, and digests of the first and the last one."""
  if not len(examples):
    return {name: "0 examples"}
  ends = [digest(repr(examples[i]).encode(errors="replace")) for i in (0, len(examples) - 1)]
  return {name: f"{len(examples)} examples, the first {ends[0]}, the last {ends[1]}"}


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
  """Returns the names of what differs, in order.

  A file of code that only one of the two has is none: what imports it, or no longer does, differs
  as well.
  """
  names = [
    name
    for name in old.keys() | new.keys()
    if not name.startswith(CODE) or (name in old and name in new)
  ]
  return sorted(name for name in names if old.get(name) != new.get(name))


def check_hosts(values: Mapping[str, str]) -> None:
  """Refuses to go on where the hosts of a run have different values; every process calls it.

  Raises:
    SettingError: names what differs, on which host, and both values; the same on every process.
  """
  if jax.process_count() == 1:
    return
  found = hosts.gather(dict(values))
  for host, others in enumerate(found):
    if names := differences(found[0], others):
      said = [
        f"{name}: {_both(found[0].get(name), others.get(name), host)}"
        for name in names[:MOST_SHOWN]
      ]
      more = f"; and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
      raise SettingError(
        f"{'; '.join(said)}{more}; all hosts need the same command, code, data in the same order, "
        "and weights"
      )


def record(workdir: str, values: Mapping[str, str], step: int) -> list[str]:
  """Writes DIR/inputs.json, and returns a line for everything that has changed since it was written
  before.

  Where something has, the file as it was is kept as DIR/inputs-until-STEP.json: what the steps
  before were made with. Process 0 does; others return nothing.

  Args:
    workdir: the run's folder.
    values: what the run depends on now.
    step: how many steps are done; 0: nothing is told, as nothing was made with the old ones.

  Raises:
    StorageError: the folder cannot be written.
  """
  if jax.process_index() != 0:
    return []
  path = storage.place(workdir) / NAME
  content = (json.dumps(dict(values), indent=2) + "\n").encode()
  with storage.run_errors(workdir), storage.as_os_errors():
    before = path.read_bytes() if path.is_file() else None
    if before == content:
      return []
    lines = _changes(before, values, step) if before is not None and step else []
    kept = path.with_name(f"inputs-until-{step}.json")
    if lines and not kept.exists():  # a second change at the same step: no step was made in between
      storage.write(kept, before)
    storage.write(path, content)
  return lines


def _changes(before: bytes, values: Mapping[str, str], step: int) -> list[str]:
  """Returns a line for every difference from what inputs.json held."""
  try:
    old = json.loads(before)
    if not isinstance(old, dict):
      raise ValueError("it holds no object")
  except (ValueError, RecursionError) as error:
    return [
      f"{NAME} cannot be read ({error}), so it is not known what has changed since step {step} of "
      "this run"
    ]
  return [
    f"{name} has changed since step {step} of this run: was "
    f"{_cut(old.get(name), values.get(name))}, "
    f"is {_cut(values.get(name), old.get(name))}"
    for name in differences(old, values)
  ]


def _both(first: str | None, other: str | None, host: int) -> str:
  """Returns the words for a value that differs between process 0 and another one."""
  return f"host 0 has {_cut(first, other)}, host {host} has {_cut(other, first)}"


def _cut(text: Any, other: Any) -> str:
  """Returns a text that is long from a little before the place where it differs from the other."""
  text, other = "nothing" if text is None else str(text), str(other)
  if len(text) <= LONGEST:
    return text
  same = next(
    (i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other))
  )
  start = max(0, min(same - LONGEST // 3, len(text) - LONGEST))
  end = start + LONGEST
  return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _of_disk(path: pathlib.Path) -> str:
  """Returns the size and the digest of a file of a disk; what is no plain file, as a pipe, is not
  opened.
  """
  if not path.is_file():
    raise FileNotFoundError
  with open(path, "rb") as file:
    size = file.seek(0, 2)
    whole = size <= WHOLE_BYTES
    found = hashlib.sha256()
    for piece in range(1 if whole else PIECES):
      file.seek(0 if whole else piece * (size - PIECE_BYTES) // (PIECES - 1))
      while block := file.read(PIECE_BYTES):
        found.update(block)
        if not whole:
          break
  return f"{size} bytes, {found.hexdigest()[:16]}"


def _is_users(name: str, file: str) -> bool:
  """Returns whether a loaded module is a user's: neither Python's, nor of this project, nor an
  installed package.
  """
  if name.split(".")[0] in NOT_USERS:
    return False
  paths = sysconfig.get_paths()
  python = (paths["stdlib"], paths["platstdlib"])
  return not file.startswith(python) and not {"site-packages", "dist-packages"} & set(
    pathlib.Path(file).parts
  )


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
  """Returns the leaves of nested dicts by their dotted names."""
  if not isinstance(tree, dict):
    return {name: tree}
  return {
    k: v
    for key, sub in tree.items()
    for k, v in _flat(sub, f"{name}.{key}" if name else key).items()
  }
