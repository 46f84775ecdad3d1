"""Folders on a disk or in a bucket of Google Cloud Storage, `gs://BUCKET/FOLDER`: one path for
both, and what differs.

A bucket has objects with names and nothing else: no folders, no links, no locks, no file that is
added to or renamed. An object appears whole or not at all. So what a library writes or reads by its
name on a disk goes through a temporary file here, logs are kept on the disk and copied up as a
whole (bucket_logs.py), and a folder is renamed by copying and
deleting. TensorFlow is not needed: etils.epath goes to buckets through gcsfs, arrays through
tensorstore. jax is not imported here.
"""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

# Read by etils and gcsfs when they are first used: not through TensorFlow where it happens to be
# installed, and without a question to Google, before every first use of a bucket, whether it is of
# a kind that has folders.
os.environ.setdefault("EPATH_USE_TF", "false")
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import fsspec
from etils import epath

from grpo_jax.errors import SettingError, StorageError

# What a listing said is not kept: orbax and other hosts write into the same folders.
fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False

Path = epath.Path
Progress = Callable[[int, int], None]  # (bytes that are there, bytes that there are)

GCS = "gs://"
USE = f"use {GCS}BUCKET/FOLDER, or a folder of a disk"
INSTALL = "pip install -e '.[gcs]' -c constraints.txt"
_SCHEME = re.compile(r"(?:\./)*([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(?:^|/)(gs|gcs|s3|hdfs|https?|file):/(?!/)")
_NAME = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?")
_SPECIAL = "*?[]#"  # gcsfs would take them for patterns and versions


def check(name: str, value: str) -> None:
  """Refuses a folder or file that is neither on a disk nor in a bucket that can be used. The
  network is not asked.

  Args:
    name: of the setting.
    value: what it is set to; "" is let through.

  Raises:
    SettingError: another scheme, a bucket without a name, or gcsfs is not installed.
  """
  said = f"{name}={value!r}"
  if lost := _LOST_SLASH.search(value):
    raise SettingError(f"{said}: {lost[1]}:/ would be a folder of that name on this disk; {USE}")
  scheme = _SCHEME.match(value)
  if not scheme:
    return
  if not value.startswith(GCS):
    raise SettingError(f"{said}: {scheme[0]} is not supported; {USE}")
  if not _NAME.fullmatch(value):
    raise SettingError(
      f"{said}: names no bucket; use {GCS}BUCKET/FOLDER, the BUCKET of small letters, digits and "
      "-_."
    )
  if any(part in (".", "..") for part in value.split("/")) or any(
    c in _SPECIAL or not c.isprintable() for c in value
  ):
    raise SettingError(
      f"{said}: a bucket's names are used without .. and without {_SPECIAL}; use another name"
    )
  try:
    import gcsfs  # noqa: F401
  except ImportError as error:
    raise SettingError(f"{said}: {GCS} needs gcsfs, which is not installed: {INSTALL}") from error


def check_disk(name: str, value: str, why: str) -> None:
  """Refuses what is not on a disk, where only a disk will do.

  Raises:
    SettingError: names the setting, its value and `why`.
  """
  check(name, value)
  if in_bucket(value):
    raise SettingError(f"{name}={value!r}: is in a bucket; {why}")


def check_reached(name: str, value: str) -> None:
  """Refuses a bucket that does not answer, or that this machine may not read; a folder of a disk is
  let through.

  Raises:
    SettingError: names the setting, its value and what the bucket said.
  """
  if not in_bucket(value):
    return
  try:
    files().info(parts(value)[0])
  except Exception as error:  # gcsfs, Google's libraries and the network raise many kinds
    text = " ".join(str(error).split()) or type(error).__name__
    raise SettingError(
      f"{name}={value!r}: the bucket cannot be read ({text[:200]}); check its name and this "
      "machine's credentials "
      "(gcloud auth application-default login)"
    ) from error


def place(path: str | os.PathLike) -> Path:
  """Returns the path of a folder or file, on a disk or in a bucket."""
  return epath.Path(os.fspath(path))


def absolute(path: str | os.PathLike) -> Path:
  """Returns the path, from the root of the disk or as it is in a bucket."""
  return place(path) if in_bucket(path) else place(pathlib.Path(path).absolute())


def expanded(name: str, path: str) -> str:
  """Returns a folder or file of a setting with the home directory in place of its `~`.

  Raises:
    SettingError: it is another user's, and there is no such user.
  """
  if not path.startswith("~"):
    return path
  found = os.path.expanduser(path)
  if found == path:
    raise SettingError(
      f"{name}={path!r}: there is no such user; write ./{path} for a folder of that name"
    )
  return found


def check_there(workdir: str | os.PathLike, file: IO) -> None:
  """Refuses to go on where an open file is not the one of its name any more: nobody would find what
  is written to it.

  Launchers do not repeat the command: it would begin anew where somebody has taken the folder away.

  Raises:
    SettingError: it was deleted, moved or replaced, by itself or with its folder.
  """
  try:
    same = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
  except (FileNotFoundError, NotADirectoryError):
    same = False
  if not same:
    raise SettingError(
      f"workdir={workdir}: its {os.path.basename(file.name)} was deleted, moved or replaced while "
      "this run used it, so "
      "nothing more is written there; the same command goes on from the last checkpoint that is "
      "left, or begins anew"
    )


def in_bucket(path: str | os.PathLike) -> bool:
  """Returns whether a path is one of a bucket."""
  return os.fspath(path).startswith(GCS)


def parts(path: str | os.PathLike) -> tuple[str, str]:
  """Returns the bucket of a path in one, and the name in it."""
  bucket, *names = place(path).parts[2:]
  return bucket, "/".join(names)


def title(path: str | os.PathLike) -> str:
  """Returns the last part of a folder's name."""
  return place(path).name if in_bucket(path) else pathlib.Path(path).resolve().name


def files() -> Any:
  """Returns gcsfs's file system of all buckets."""
  return fsspec.filesystem("gcs")


def is_plain(path: Path) -> bool:
  """Returns whether a path is a file that ends: no folder, pipe or device, which reading would wait
  for.
  """
  return path.is_file() if in_bucket(path) else os.path.isfile(path)


def size(path: Path) -> int:
  """Returns the bytes of a file."""
  return path.stat().length if in_bucket(path) else os.stat(path).st_size


def start(path: Path, length: int) -> bytes:
  """Returns the first bytes of a file, as many as it has.

  Raises:
    OSError: it cannot be read.
  """
  if not in_bucket(path):
    with open(path, "rb") as f:
      return f.read(length)
  with errors_of_a_disk():
    return files().cat_file(os.fspath(path), 0, min(length, size(path))) if size(path) else b""


def write(path: Path, content: bytes) -> None:
  """Writes a file as a whole: whatever happens, it has the old content or the new one.

  Raises:
    OSError: it could not be written; the old one is as it was.
  """
  if in_bucket(path):
    with errors_of_a_disk():
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
  """Gives a file of this disk to write, for what writes by name only; in a bucket it appears when
  the block ends.
  """
  if not in_bucket(path):
    yield pathlib.Path(path)
    return
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / path.name
    yield file
    with errors_of_a_disk():
      files().put_file(str(file), os.fspath(path))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[pathlib.Path]:
  """Gives a file of this disk with what a file holds, for what reads by name only; that of a bucket
  is a copy.
  """
  if not in_bucket(path):
    yield pathlib.Path(path)
    return
  with tempfile.TemporaryDirectory() as folder:
    yield download([path], pathlib.Path(folder))[path]


def download(
  paths: Iterable[Path], folder: pathlib.Path, progress: Progress | None = None
) -> dict[Path, pathlib.Path]:
  """Copies files of a bucket, which have different names, into a folder of this disk.

  Args:
    paths: in the bucket.
    folder: is there.
    progress: is called with the bytes that have come and that will come.

  Returns:
    The copy of each.

  Raises:
    OSError: one could not be read, or the disk is full.
  """
  sizes = {path: size(path) for path in paths}
  total, done, copies = sum(sizes.values()), 0, {}
  if (free := shutil.disk_usage(folder).free) < total:
    raise OSError(
      f"{free / 1e9:.1f} GB are free in {folder} and the files have {total / 1e9:.1f} GB; set "
      "TMPDIR"
    )
  for path, length in sizes.items():
    copies[path] = folder / path.name
    told = fsspec.Callback(hooks={"show": _Shown(progress, done, total)} if progress else {})
    with errors_of_a_disk():
      files().get_file(os.fspath(path), str(copies[path]), callback=told)
    done += length
  return copies


class _Shown:
  """Hands on how far the copy of one file is, after `done` bytes of others."""

  def __init__(self, progress: Progress, done: int, total: int):
    self.progress, self.done, self.total = progress, done, total

  def __call__(self, size: int | None, value: int, **_: Any) -> None:
    self.progress(self.done + value, self.total)


def cut(path: Path, length: int) -> None:
  """Cuts a file to its first bytes."""
  if in_bucket(path):
    write(path, path.read_bytes()[:length])
  else:
    os.truncate(path, length)


def remove(folder: Path) -> None:
  """Deletes a folder with all that is in it; one that is not there, or that cannot be deleted, is
  left.
  """
  if in_bucket(folder):
    with contextlib.suppress(OSError), errors_of_a_disk():
      files().rm(os.fspath(folder), recursive=True)
  else:
    shutil.rmtree(folder, ignore_errors=True)


def rename(source: Path, target: Path, last: str = "") -> None:
  """Gives a folder another name, under which there is nothing.

  Args:
    source: the folder; in a bucket every object of it is copied, and then deleted.
    target: its new name, on the same disk or in the same bucket.
    last: name of the object that is copied after all others, whose presence says that all are
      there.

  Raises:
    OSError: it could not be done; in a bucket, `target` may have some of the objects.
  """
  if not in_bucket(source):
    os.rename(source, target)
    return
  with errors_of_a_disk():
    names = [name.removeprefix(f"{_inside(source)}/") for name in files().find(os.fspath(source))]
    for name in sorted(names, key=lambda name: name == last):
      files().cp_file(f"{source}/{name}", f"{target}/{name}")
    files().rm(os.fspath(source), recursive=True)


def _inside(path: Path) -> str:
  """The name of an object or folder as gcsfs gives it back: BUCKET/NAME."""
  return os.fspath(path).removeprefix(GCS)


@contextlib.contextmanager
def errors_of_a_disk() -> Iterator[None]:
  """Makes an `OSError` of whatever a bucket, Google's libraries or the network raise."""
  try:
    yield
  except OSError:
    raise
  except Exception as error:
    raise OSError(" ".join(str(error).split())[:300] or type(error).__name__) from error


@contextlib.contextmanager
def of_a_run(workdir: str) -> Iterator[None]:
  """Turns an OSError of the block into one line, for what a run writes to its folder once it has
  begun.

  Raises:
    StorageError: the folder cannot be written, or the disk is full.
  """
  try:
    yield
  except OSError as error:
    raise StorageError(
      f"workdir={workdir}: cannot write there: {error.strerror or error}; "
      "what was saved before is safe, the same command goes on from it"
    ) from error
