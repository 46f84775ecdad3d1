"""Handles folders on a disk and in a bucket of Google Cloud Storage, `gs://BUCKET/FOLDER`, alike.

A bucket holds objects with names: it has no folders, links or locks, and no file can be appended to
or renamed. An object appears as a whole or not at all. So whatever needs a file name on a disk goes
through a temporary file here, logs are kept on the disk and copied as a whole (bucket_logs.py), and
a folder is renamed by copying and deleting. TensorFlow is not needed: etils.epath reaches buckets
through gcsfs, arrays through tensorstore. jax is not imported here.
"""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO

# etils and gcsfs read these when they are first used. The first keeps etils from using TensorFlow
# if it happens to be installed; the second keeps gcsfs from asking Google, before it first uses a
# bucket, whether the bucket is of the kind that has folders.
os.environ.setdefault("EPATH_USE_TF", "false")
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import fsspec
from etils.epath import Path

from grpo_jax.errors import CheckpointError, SettingError, StorageError

# Listings are not cached: orbax and other hosts write into the same folders.
fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False

Progress = Callable[[int, int], None]  # (bytes copied so far, bytes in all)

GCS = "gs://"
USE = f"use {GCS}BUCKET/FOLDER, or a folder of a disk"
INSTALL = "pip install -e '.[gcs]' -c constraints.txt"
_SCHEME = re.compile(r"(?:\./)*([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(?:^|/)(gs|gcs|s3|hdfs|https?|file):/(?!/)")
_NAME = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?")
_SPECIAL = "*?[]#"  # gcsfs reads them as patterns and versions


def check(name: str, value: str) -> None:
  """Refuses a folder or file that is neither on a disk nor in a usable bucket, without network.

  Args:
    name: of the setting.
    value: of the setting; "" passes.
  """
  setting = f"{name}={value!r}"
  if lost := _LOST_SLASH.search(value):
    raise SettingError(f"{setting}: {lost[1]}:/ would be a folder of that name on this disk; {USE}")
  scheme = _SCHEME.match(value)
  if not scheme:
    return
  if not value.startswith(GCS):
    raise SettingError(f"{setting}: {scheme[0]} is not supported; {USE}")
  if not _NAME.fullmatch(value):
    raise SettingError(
      f"{setting}: names no bucket; use {GCS}BUCKET/FOLDER, with a BUCKET of small letters, digits "
      "and -_."
    )
  climbs = any(part in (".", "..") for part in value.split("/"))
  if climbs or any(c in _SPECIAL or not c.isprintable() for c in value):
    raise SettingError(
      f"{setting}: names in a bucket may not contain .. or any of {_SPECIAL}; use another name"
    )
  try:
    import gcsfs  # noqa: F401
  except ImportError as error:
    raise SettingError(
      f"{setting}: {GCS} needs gcsfs, which is not installed: {INSTALL}"
    ) from error


def check_disk(name: str, value: str, why: str) -> None:
  """Refuses a path that is not on a disk, for settings that need one; `why` says what needs it."""
  check(name, value)
  if in_bucket(value):
    raise SettingError(f"{name}={value!r}: is in a bucket; {why}")


def check_reached(name: str, value: str) -> None:
  """Refuses a bucket that does not answer or that this machine may not read; disks pass."""
  if not in_bucket(value):
    return
  try:
    files().info(parts(value)[0])
  except Exception as error:  # gcsfs, Google's libraries and the network raise many kinds
    text = " ".join(str(error).split()) or type(error).__name__
    raise SettingError(
      f"{name}={value!r}: the bucket cannot be read ({text[:200]}); check its name and this "
      "machine's credentials (gcloud auth application-default login)"
    ) from error


def check_file(name: str, value: str, ending: str = "", new: bool = False) -> None:
  """Refuses a file that could not be written, before the work for it is done.

  Args:
    name, value: of the setting; of a file in a bucket only the name is checked.
    ending: that the file's name has.
    new: refuses a file that is there already.
  """
  check(name, value)
  setting, path = f"{name}={value!r}", absolute(value)
  if not in_bucket(value):
    if path.is_dir() or value.endswith("/"):
      raise SettingError(f"{setting}: is a folder; use the name of a file in it")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
      raise SettingError(f"{setting}: {path.parent} is no folder that can be written to")
    if new and path.is_file():
      raise SettingError(f"{setting}: is there already; remove it, or use another name")
  if not value.endswith(ending):
    raise SettingError(f"{setting}: use a name that ends with {ending}, as in {value}{ending}")


def place(path: str | os.PathLike) -> Path:
  """Returns the path of a folder or file, on a disk or in a bucket."""
  return Path(os.fspath(path))


def absolute(path: str | os.PathLike) -> Path:
  """Returns the absolute path; one in a bucket stays as it is."""
  return place(path) if in_bucket(path) else place(pathlib.Path(path).absolute())


def inside(path: str, folder: str) -> bool:
  """Returns whether two settings name one folder, or the first something in it; "" names none."""
  ends = [os.fspath(absolute(name)).rstrip("/") + "/" for name in (path, folder) if name]
  return len(ends) == 2 and ends[0].startswith(ends[1])


def expanded(name: str, path: str) -> str:
  """Returns the path that the setting `name` holds, with `~` replaced by the home directory."""
  if not path.startswith("~"):
    return path
  absolute_path = os.path.expanduser(path)
  if absolute_path == path:
    raise SettingError(
      f"{name}={path!r}: there is no such user; write ./{path} for a folder of that name"
    )
  return absolute_path


def check_there(workdir: str | os.PathLike, file: IO) -> None:
  """Ends the run if the name of an open file no longer leads to it, so that writes would be lost.

  The exit code is that of bad input: launchers must not repeat the command, which would start over
  where somebody has taken the folder away.
  """
  try:
    same = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
  except (FileNotFoundError, NotADirectoryError):
    same = False
  if not same:
    raise CheckpointError(
      f"workdir={workdir}: its {os.path.basename(file.name)} was deleted, moved or replaced while "
      "this run used it, so nothing more is written there; the same command resumes from the last "
      "checkpoint that is left, or starts over"
    )


def in_bucket(path: str | os.PathLike) -> bool:
  """Returns whether a path is in a bucket."""
  return os.fspath(path).startswith(GCS)


def parts(path: str | os.PathLike) -> tuple[str, str]:
  """Returns the bucket of a path and the name of the object or folder in it."""
  bucket, *names = place(path).parts[2:]
  return bucket, "/".join(names)


def title(path: str | os.PathLike) -> str:
  """Returns the last part of a folder's name."""
  return place(path).name if in_bucket(path) else pathlib.Path(path).resolve().name


def files() -> fsspec.AbstractFileSystem:
  """Returns gcsfs's file system of all buckets."""
  return fsspec.filesystem("gcs")


def is_plain(path: Path) -> bool:
  """Returns whether a path is a regular file: reading a pipe or device could wait for ever."""
  return path.is_file() if in_bucket(path) else os.path.isfile(path)


def size(path: Path) -> int:
  """Returns the size of a file in bytes."""
  return path.stat().length if in_bucket(path) else os.stat(path).st_size


def start(path: Path, length: int) -> bytes:
  """Returns the first `length` bytes of a file, or all of a shorter one; raises OSError only."""
  if not in_bucket(path):
    with open(path, "rb") as f:
      return f.read(length)
  with as_os_errors():
    return files().cat_file(os.fspath(path), 0, min(length, size(path))) if size(path) else b""


def write(path: Path, content: bytes) -> None:
  """Replaces a file as a whole: whatever happens, it has the old content or the new one.

  Raises:
    OSError: it could not be written and is unchanged.
  """
  if in_bucket(path):
    with as_os_errors():
      files().pipe_file(os.fspath(path), content)
    return
  temporary = path.with_name(f"{path.name}.tmp")
  try:
    with open(temporary, "wb") as f:
      f.write(content)
      f.flush()
      os.fsync(f.fileno())
    os.replace(temporary, path)
  except OSError:
    with contextlib.suppress(OSError):
      os.unlink(temporary)
    raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[pathlib.Path]:
  """Yields a local file to write; one for a bucket is copied there when the block ends."""
  if not in_bucket(path):
    yield pathlib.Path(path)
    return
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / path.name
    yield file
    with as_os_errors():
      files().put_file(str(file), os.fspath(path))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[pathlib.Path]:
  """Yields a local file with the content of `path`: the file itself, or a copy of a bucket's."""
  if not in_bucket(path):
    yield pathlib.Path(path)
    return
  with tempfile.TemporaryDirectory() as folder:
    yield download([path], pathlib.Path(folder))[path]


def download(
  paths: Iterable[Path], folder: pathlib.Path, progress: Progress | None = None
) -> dict[Path, pathlib.Path]:
  """Returns local copies of files of a bucket, by their paths.

  Args:
    paths: in the bucket; their last parts must differ.
    folder: an existing folder of this disk, for the copies.
    progress: called with the bytes copied so far and the bytes in all.

  Raises:
    OSError: a file could not be read, or the disk is full.
  """
  sizes = {path: size(path) for path in paths}
  total, done = sum(sizes.values()), 0
  copies: dict[Path, pathlib.Path] = {}
  if (free := shutil.disk_usage(folder).free) < total:
    raise OSError(
      f"{free / 1e9:.1f} GB are free in {folder} and the files have {total / 1e9:.1f} GB; set "
      "TMPDIR to a larger disk"
    )
  for path, length in sizes.items():
    copies[path] = folder / path.name
    hooks = {"show": _FileProgress(progress, done, total)} if progress else {}
    with as_os_errors():
      files().get_file(os.fspath(path), str(copies[path]), callback=fsspec.Callback(hooks=hooks))
    done += length
  return copies


class _FileProgress:
  """Reports the progress of one file of several, of which `done` bytes were copied before."""

  def __init__(self, progress: Progress, done: int, total: int):
    self.progress, self.done, self.total = progress, done, total

  def __call__(self, size: int | None, value: int, **_: object) -> None:
    self.progress(self.done + value, self.total)


def cut(path: Path, length: int) -> None:
  """Truncates a file to its first `length` bytes."""
  if in_bucket(path):
    write(path, path.read_bytes()[:length])
  else:
    os.truncate(path, length)


def remove(folder: Path) -> None:
  """Deletes a folder with its contents, as much of it as exists and can be deleted."""
  if in_bucket(folder):
    with contextlib.suppress(OSError), as_os_errors():
      files().rm(os.fspath(folder), recursive=True)
  else:
    shutil.rmtree(folder, ignore_errors=True)


def rename(source: Path, target: Path, last: str = "") -> None:
  """Renames a folder to a name that is not taken yet.

  Args:
    source: the folder; in a bucket, each of its objects is copied and then deleted.
    target: its new name, on the same disk or in the same bucket.
    last: name of the object to copy last, whose presence then shows that all others are there.

  Raises:
    OSError: it failed; in a bucket, `target` may have some of the objects.
  """
  if not in_bucket(source):
    os.rename(source, target)
    return
  with as_os_errors():
    prefix = os.fspath(source).removeprefix(GCS)  # gcsfs returns names as BUCKET/NAME
    names = [name.removeprefix(f"{prefix}/") for name in files().find(os.fspath(source))]
    for name in sorted(names, key=lambda name: name == last):
      files().cp_file(f"{source}/{name}", f"{target}/{name}")
    files().rm(os.fspath(source), recursive=True)


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
  """Turns whatever a bucket, Google's libraries or the network raise into OSError."""
  try:
    yield
  except OSError:
    raise
  except Exception as error:
    raise OSError(" ".join(str(error).split())[:300] or type(error).__name__) from error


@contextlib.contextmanager
def run_errors(workdir: str) -> Iterator[None]:
  """Turns an OSError into a StorageError of one line, while a run writes to its folder."""
  try:
    yield
  except OSError as error:
    raise StorageError(
      f"workdir={workdir}: cannot write there: {error.strerror or error}; what was saved before is "
      "safe, the same command resumes from it"
    ) from error
