"""Checksums of the files that a run writes as a whole: DIR/checksums.json, by which damage in them
is noticed.

    {"config.json": "5120 bytes, 1c291ca3", "model/decoder.json": ..., "export/model.safetensors":
    ...}

Checkpoints, logs and compiled programs have checksums of their own (checkpoint.py, logs.py,
compile_cache.py). In a bucket, which keeps checksums of its objects itself, large files are left
out. jax is not imported here.
"""

import json
import zlib
from collections.abc import Iterator, Sequence

from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

NAME = "checksums.json"
START = ("config.json", "inputs.json", "model")  # what a run writes when it starts
END = ("result.json", "export", "adapter")  # and at its end
LARGEST = 100 * 1000**2  # bytes of a file of a bucket
_BLOCK = 1 << 24

MISSING = "missing"


def record(workdir: str, names: Sequence[str]) -> None:
  """Writes down the checksums of files, and of all files of folders, in place of those that they
  had.

  Raises:
    StorageError: the folder cannot be written.
  """
  place = storage.place(workdir)
  with storage.run_errors(workdir), storage.as_os_errors():
    try:
      kept = read(workdir)
    except SettingError:
      kept = {}
    sums = {name: said for name, said in kept.items() if name.partition("/")[0] not in names}
    for name in names:
      sums |= {file: checksum(place / file) for file in _files(place, name)}
    content = (json.dumps(dict(sorted(sums.items())), indent=2) + "\n").encode()
    path = place / NAME
    if not path.is_file() or path.read_bytes() != content:
      storage.write(path, content)


def read(workdir: str) -> dict[str, str]:
  """Returns the checksum of each file, by its name in the run's folder; {} where there are none.

  Raises:
    SettingError: the file that has them cannot be read.
  """
  where = f"workdir={workdir}"
  sums = model_folder.read_json(where, storage.place(workdir), NAME) or {}
  model_folder.check(where, NAME, sums, dict.fromkeys(sums, model_folder.TEXT))
  if outside := [
    name for name in sums if name.startswith("/") or ".." in name.split("/") or "\0" in name
  ]:
    raise SettingError(
      f"{where}: {NAME} names {model_folder.shown(outside[0])}, which is no file of this folder"
    )
  return sums


def changed(workdir: str, name: str, said: str) -> str:
  """Returns "" where a file of a run has the checksum `said`, MISSING where it is not there, or
  what it has.
  """
  path = storage.place(workdir) / name
  if not storage.is_plain(path):
    return MISSING
  try:
    now = checksum(path)
  except OSError as error:
    return f"cannot be read: {error.strerror or error}"
  return "" if now == said else now


def checksum(path: storage.Path) -> str:
  """Returns the bytes and the CRC-32 of a file, as text.

  Raises:
    OSError: it cannot be read.
  """
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
  """Returns the files of a run under a name, which is that of a file or of a folder; not the large
  ones of a bucket.
  """
  path = place / name
  found = (
    [f"{name}/{file.name}" for file in path.iterdir() if storage.is_plain(file)]
    if path.is_dir()
    else []
  )
  found = sorted(found) + ([name] if storage.is_plain(path) else [])
  return [
    file for file in found if not storage.in_bucket(place) or storage.size(place / file) <= LARGEST
  ]
