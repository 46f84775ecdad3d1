"""Describes everything that a run's numbers depend on, as names with short texts, in inputs.json.

    version of jax            0.10.2
    code of grpo_jax          the digest of all of its files
    code of my_reward.py      of a file that a setting names, or of a user's module that it imported
    data.path                 1312 bytes and a digest; for a folder, each file under data.path/NAME
    init_from/config.json     likewise, for each file of a folder of weights or of a tokenizer
    training data             the number of examples, and digests of the first and the last one
    jax_enable_x64            a switch of jax that changes numbers

All hosts of a run must have the same inputs and the same settings (`check_hosts`). When a run is
resumed, changed inputs are reported (`record`). Settings are not in inputs.json: DIR/config.json
has them, and workdir.py compares them.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence

import jax
from ml_collections import ConfigDict

from grpo_jax.config import sections
from grpo_jax.distributed import hosts
from grpo_jax.errors import TrainingError
from grpo_jax.io import inputs_file, storage

SAMPLES = "samples.npz"  # what an offline run has drawn, see loops/offline.py
PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "numpy"),
  *("ml_dtypes", "grain", "tokenizers", "orbax-checkpoint"),
)
SWITCHES = (
  "jax_enable_x64",
  "jax_default_matmul_precision",
  "jax_default_prng_impl",
  "jax_threefry_partitionable",
  "jax_numpy_dtype_promotion",
)
# absl imports the file of --config as "config_config"; its settings are compared by themselves
NOT_USERS = ("__main__", "__mp_main__", "grpo_jax", "experiments", "config_config")
WHOLE_BYTES = 1 << 30  # a larger file is digested in PIECES
PIECES, PIECE_BYTES = 256, 1 << 18  # spread evenly: trained weights differ nearly everywhere
MOST_FILES = 100  # of a folder; for more, names and sizes are digested instead of contents
LONGEST = 120  # characters of a value in a message
MOST_SHOWN = 3  # differences in a message


def digest(content: bytes) -> str:
  """Returns the first 16 hexadecimal digits of the SHA-256 of `content`."""
  return hashlib.sha256(content).hexdigest()[:16]


def describe_settings(config: ConfigDict) -> dict[str, str]:
  """Returns every setting by its dotted name."""
  settings = sections.flat(json.loads(config.to_json_best_effort()))
  return {name: repr(value) for name, value in settings.items()}


def describe_versions() -> dict[str, str]:
  """Returns the versions of Python and packages, jax's switches and the digest of grpo_jax."""
  versions = {"version of python": platform.python_version()}
  versions |= {f"version of {name}": importlib.metadata.version(name) for name in PACKAGES}
  versions |= {name: str(getattr(jax.config, name)) for name in SWITCHES}
  folder = pathlib.Path(__file__).parents[1]
  files = sorted(folder.rglob("*.py"), key=str)
  code = b"".join(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() for file in files)
  return versions | {f"{inputs_file.CODE}grpo_jax": digest(code)}


def describe_code(named: Mapping[str, str]) -> dict[str, str]:
  """Returns the digest of each Python file of the user's that was loaded.

  Args:
    named: the files that settings name: their digests when they were loaded, by those names.
      Modules that they imported are added; installed packages are left out.
  """
  digests = {f"{inputs_file.CODE}{name}": text for name, text in named.items()}
  for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(".py") and _is_users(name, file):
      digests.setdefault(f"{inputs_file.CODE}{name}", describe_file(file))
  return digests


def describe_file(path: str | os.PathLike) -> str:
  """Returns the size and digest of a file on a disk or in a bucket, or "absent"."""
  try:
    with storage.as_os_errors():
      if not storage.in_bucket(path):
        return _describe_local(pathlib.Path(path))
      info = storage.files().info(os.fspath(storage.place(path)))
      checksum = info.get("crc32c") or info.get("md5Hash") or info.get("etag")
      return f"{info['size']} bytes, {checksum}"
  except FileNotFoundError:
    return "absent"
  except OSError as error:
    return f"cannot be read: {error.strerror or error}"


def describe_path(setting: str, path: str) -> dict[str, str]:
  """Returns the description of a file, or of each file of a folder, by setting; {} for ""."""
  if not path:
    return {}
  place = storage.place(path)
  try:
    with storage.as_os_errors():
      if not place.is_dir():
        return {setting: describe_file(place)}
      files = sorted(
        (file for file in place.iterdir() if file.name[0] != "." and file.is_file()), key=str
      )
      if len(files) <= MOST_FILES:
        return {f"{setting}/{file.name}": describe_file(file) for file in files}
      sizes = [(file.name, storage.size(file)) for file in files]
  except OSError as error:
    return {setting: f"cannot be read: {error.strerror or error}"}
  total = sum(size for _, size in sizes)
  return {setting: f"{len(files)} files, {total} bytes, {digest(repr(sizes).encode())}"}


def describe_examples(name: str, examples: Sequence[object]) -> dict[str, str]:
  """Returns the number of examples, with digests of the first and the last one."""
  if not len(examples):
    return {name: "0 examples"}
  ends = [digest(described(examples[i]).encode(errors="replace")) for i in (0, len(examples) - 1)]
  return {name: f"{len(examples)} examples, the first {ends[0]}, the last {ends[1]}"}


def described(example: object) -> str:
  """Returns the content of an example as text, the same in each process.

  An object or a function in it, such as a scorer, stands for its type or name: where it lies in
  memory is another place in each process.
  """
  return re.sub(r" at 0x[0-9a-f]+", "", repr(example))


def check_hosts(values: Mapping[str, str]) -> None:
  """Ends the run, with the same message on every process, if its hosts have different values."""
  if jax.process_count() == 1:
    return
  first, *others = hosts.gather(dict(values))
  for host, other in enumerate(others, 1):
    if names := inputs_file.differences(first, other):
      texts = [
        f"{name}: host 0 has {_excerpt(first.get(name), other.get(name))}, "
        f"host {host} has {_excerpt(other.get(name), first.get(name))}"
        for name in names[:MOST_SHOWN]
      ]
      more = f"; and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
      raise TrainingError(
        f"{'; '.join(texts)}{more}; all hosts need the same command, code, data in the same order, "
        "and weights"
      )


def record(workdir: str, values: Mapping[str, str], step: int | None) -> list[str]:
  """Writes DIR/inputs.json on process 0 and returns a line for each change since it was written.

  If anything has changed, the old file is kept as DIR/inputs-until-STEP.json: it describes the
  inputs of the steps before.

  Args:
    workdir: the run's folder.
    values: the inputs of the run now.
    step: the number of finished steps of the checkpoint from which the run goes on. None: there is
      none, and a change is reported only if samples were drawn and scored before (DIR/samples.npz).
  """
  if jax.process_index() != 0:
    return []
  path = storage.place(workdir) / inputs_file.NAME
  content = (json.dumps(dict(values), indent=2) + "\n").encode()
  with storage.run_errors(workdir), storage.as_os_errors():
    before = path.read_bytes() if path.is_file() else None
    if before == content:
      return []
    lines = []
    if before is not None and (step is not None or path.with_name(SAMPLES).exists()):
      lines = _changes(before, values, step or 0)
      kept = path.with_name(inputs_file.until(step or 0))
      if lines and not kept.exists():  # it exists after a second change at the same step
        storage.write(kept, before)
    storage.write(path, content)
  return lines


def _changes(before: bytes, values: Mapping[str, str], step: int) -> list[str]:
  """Returns a line for each difference from the old inputs.json."""
  try:
    old = json.loads(before)
    if not isinstance(old, dict):
      raise ValueError("it holds no object")
  except (ValueError, RecursionError) as error:
    return [
      f"{inputs_file.NAME} cannot be read ({error}), so it is not known what has changed since "
      f"step {step} of this run"
    ]
  return [
    f"{name} has changed since step {step} of this run: was "
    f"{_excerpt(old.get(name), values.get(name))}, is {_excerpt(values.get(name), old.get(name))}"
    for name in inputs_file.differences(old, values)
  ]


def _excerpt(text: str | None, other: str | None) -> str:
  """Returns a text; of a long one, the part around its first difference from the other."""
  text, other = "nothing" if text is None else str(text), str(other)
  if len(text) <= LONGEST:
    return text
  same = len(os.path.commonprefix([text, other]))
  start = max(0, min(same - LONGEST // 3, len(text) - LONGEST))
  end = start + LONGEST
  return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _describe_local(path: pathlib.Path) -> str:
  """Returns the size and digest of a regular file; a pipe or device is not opened."""
  if not path.is_file():
    raise FileNotFoundError
  with open(path, "rb") as file:
    size = file.seek(0, 2)
    whole = size <= WHOLE_BYTES
    sha = hashlib.sha256()
    for piece in range(1 if whole else PIECES):
      file.seek(0 if whole else piece * (size - PIECE_BYTES) // (PIECES - 1))
      while block := file.read(PIECE_BYTES):
        sha.update(block)
        if not whole:
          break
  return f"{size} bytes, {sha.hexdigest()[:16]}"


def _is_users(name: str, file: str) -> bool:
  """Returns whether a module is the user's: not Python's, this project's or an installed one."""
  if name.split(".")[0] in NOT_USERS:
    return False
  paths = sysconfig.get_paths()
  python = (paths["stdlib"], paths["platstdlib"])
  installed = {"site-packages", "dist-packages"} & set(pathlib.Path(file).parts)
  return not file.startswith(python) and not installed
