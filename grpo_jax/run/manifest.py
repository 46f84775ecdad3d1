"""Keeps the checksums of the files that a run writes as a whole, in DIR/checksums.json.

    {"config.json": "5120 bytes, 1c291ca3", "model/decoder.json": ..., "export/...": ...}

Checkpoints, logs and compiled programs have checksums of their own (checkpoint.py, logs.py,
compile_cache.py). Large files in a bucket, which keeps checksums itself, are left out. jax is not
imported here.
"""

import json
import zlib
from collections.abc import Iterator, Sequence

from grpo_jax.errors import CheckpointError, GrpoError, as_kind
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

NAME = "checksums.json"
START = ("config.json", "inputs.json", "model")  # written at the start of a run
END = ("result.json", "export", "adapter")  # written at its end
LARGEST = 100 * 1000**2  # bytes of a file in a bucket that is not left out
_BLOCK = 1 << 24

MISSING = "missing"


def record(workdir: str, names: Sequence[str]) -> None:
  """Writes the checksums of files, and of all files in folders, in place of their old ones."""
  place = storage.place(workdir)
  with storage.run_errors(workdir), storage.as_os_errors():
    try:
      kept = read(workdir)
    except GrpoError:
      kept = {}
    sums = {name: value for name, value in kept.items() if name.partition("/")[0] not in names}
    for name in names:
      sums |= {file: checksum(place / file) for file in _files(place, name)}
    content = (json.dumps(dict(sorted(sums.items())), indent=2) + "\n").encode()
    path = place / NAME
    if not path.is_file() or path.read_bytes() != content:
      storage.write(path, content)


@as_kind(CheckpointError)
def read(workdir: str) -> dict[str, str]:
  """Returns the checksum of each file, by its name in the run's folder; {} if there are none."""
  where = f"workdir={workdir}"
  sums = model_folder.read_json(where, storage.place(workdir), NAME) or {}
  model_folder.check(where, NAME, sums, dict.fromkeys(sums, model_folder.TEXT))
  if outside := [
    name for name in sums if name.startswith("/") or ".." in name.split("/") or "\0" in name
  ]:
    raise CheckpointError(
      f"{where}: {NAME} names {model_folder.shown(outside[0])}, which is no file of this folder"
    )
  return sums


def changed(workdir: str, name: str, saved: str) -> str:
  """Returns "" if a file still has the checksum `saved`, MISSING, or its present checksum."""
  path = storage.place(workdir) / name
  if not storage.is_plain(path):
    return MISSING
  try:
    now = checksum(path)
  except OSError as error:
    return f"cannot be read: {error.strerror or error}"
  return "" if now == saved else now


def checksum(path: storage.Path) -> str:
  """Returns the bytes and the CRC-32 of a file, as text."""
  if storage.in_bucket(path):
    return _text([path.read_bytes()])
  with open(path, "rb") as file:
    return _text(iter(lambda: file.read(_BLOCK), b""))


def _text(blocks: Iterator[bytes] | list[bytes]) -> str:
  size = crc = 0
  for block in blocks:
    size, crc = size + len(block), zlib.crc32(block, crc)
  return f"{size} bytes, {crc:08x}"


def _files(place: storage.Path, name: str) -> list[str]:
  """Returns the files of a run under a name, without the large ones of a bucket."""
  path = place / name
  files = (
    [f"{name}/{file.name}" for file in path.iterdir() if storage.is_plain(file)]
    if path.is_dir()
    else []
  )
  files = sorted(files) + ([name] if storage.is_plain(path) else [])
  return [
    file for file in files if not storage.in_bucket(place) or storage.size(place / file) <= LARGEST
  ]
