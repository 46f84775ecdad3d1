"""Copies growing files, such as a run's logs, to a bucket, whose files cannot be appended to."""

import concurrent.futures
import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable

from grpo_jax.io import storage


class Mirror:
  """Keeps a local folder of growing files and copies it to a bucket at intervals.

  If the run's folder is on a disk, the local folder is that folder and nothing is copied. Leaving
  the `with` block makes the last copy.
  """

  def __init__(
    self,
    folder: str | os.PathLike,
    names: Iterable[str],
    seconds: float,
    check: Callable[[], None] | None = None,
  ):
    """Fetches those of the files `names` that exist, so that they can be appended to.

    Args:
      folder: the run's folder.
      names: paths of files in it.
      seconds: the interval between two copies.
      check: called before each copy; it raises if nothing may be copied any more.

    Raises:
      OSError: a file could not be fetched.
    """
    self.target, self.is_away = storage.place(folder), storage.in_bucket(folder)
    self.seconds, self.check = seconds, check
    self.folder = pathlib.Path(folder)
    self._last = time.monotonic()
    self._copied: dict[pathlib.Path, tuple[int, int]] = {}  # file -> its size and time when copied
    self._copying: concurrent.futures.Future | None = None
    self._resources = contextlib.ExitStack()
    if not self.is_away:
      return
    temporary = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="grpo_jax_"))
    self.folder = pathlib.Path(temporary) / self.target.name  # trackers call a run so
    self._thread = self._resources.enter_context(concurrent.futures.ThreadPoolExecutor(1))
    self.folder.mkdir(exist_ok=True)  # of a whole bucket it may be `temporary` itself
    for name in names:
      if (file := self.target / name).is_file():
        (self.folder / name).parent.mkdir(exist_ok=True)
        storage.download([file], (self.folder / name).parent)

  def __enter__(self) -> "Mirror":
    return self

  def __exit__(self, *exception: object) -> None:
    with self._resources:
      self.upload(wait=True)

  def tick(self) -> None:
    """Starts a copy in the background if the last one started at least `seconds` ago."""
    if self.is_away and time.monotonic() - self._last >= self.seconds:
      self.upload()

  def upload(self, wait: bool = False) -> None:
    """Copies every changed file in the background; with `wait`, returns when that is done.

    Raises:
      OSError: this copy (with `wait`) or an earlier one failed. Errors of `check` pass through.
    """
    if not self.is_away:
      return
    if self.check:
      self.check()
    if self._copying is not None:
      if not (wait or self._copying.done()):
        return
      self._copying.result()
    self._last = time.monotonic()
    self._copying = self._thread.submit(self._upload)
    if wait:
      copying, self._copying = self._copying, None
      copying.result()

  def _upload(self) -> None:
    for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
      stat = file.stat()
      state = (stat.st_size, stat.st_mtime_ns)
      if self._copied.get(file) != state:
        storage.write(self.target / str(file.relative_to(self.folder)), file.read_bytes())
        self._copied[file] = state
