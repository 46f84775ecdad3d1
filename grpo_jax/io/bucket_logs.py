"""Files of a run that are added to, such as its logs, where the run is in a bucket, which has no
such files.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from grpo_jax.io import storage


class Mirror:
  """A folder of this disk for files that are added to, which a bucket does not have: it is copied
  up at intervals.

  On a disk it is the run's folder itself, and there is nothing to copy. Use it in a `with` block,
  which copies at its end.
  """

  def __init__(
    self,
    folder: str | os.PathLike,
    names: Iterable[str],
    seconds: float,
    check: Callable[[], None] | None = None,
  ):
    """Fetches what is there of the files `names` of the run's folder, to be added to.

    Args:
      folder: the run's.
      names: of files directly in it.
      seconds: from one copy to the next.
      check: is called before each copy; raises where there must be none.

    Raises:
      OSError: a file could not be fetched.
    """
    self.target, self.is_away = storage.place(folder), storage.in_bucket(folder)
    self.seconds, self.check = seconds, check
    self.folder = pathlib.Path(folder)
    self._begun = time.monotonic()
    self.copied: dict[
      pathlib.Path, tuple[int, int]
    ] = {}  # file -> length and time of what was copied
    self._going: concurrent.futures.Future | None = None
    self._resources = contextlib.ExitStack()
    if not self.is_away:
      return
    self.folder = pathlib.Path(
      self._resources.enter_context(tempfile.TemporaryDirectory(prefix="grpo_jax_"))
    )
    self._thread = self._resources.enter_context(concurrent.futures.ThreadPoolExecutor(1))
    storage.download(
      [file for name in names if (file := self.target / name).is_file()], self.folder
    )

  def __enter__(self) -> "Mirror":
    return self

  def __exit__(self, *exception: Any) -> None:
    with self._resources:
      self.upload(wait=True)

  def tick(self) -> None:
    """Begins a copy in the background where the last one began `seconds` ago; raises what `upload`
    raises.
    """
    if self.is_away and time.monotonic() - self._begun >= self.seconds:
      self.upload()

  def upload(self, wait: bool = False) -> None:
    """Copies every file that has changed, as it is now, in the background; `wait`: returns when
    that is done.

    Raises:
      OSError: this copy (with `wait`) or one before it failed. And what `check` raises.
    """
    if not self.is_away:
      return
    if self.check:
      self.check()
    if self._going is not None:
      if not (wait or self._going.done()):
        return
      self._going.result()
    self._begun = time.monotonic()
    self._going = self._thread.submit(self._upload)
    if wait:
      going, self._going = self._going, None
      going.result()

  def _upload(self) -> None:
    for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
      found = file.stat()
      state = (found.st_size, found.st_mtime_ns)
      if self.copied.get(file) != state:
        storage.write(self.target / str(file.relative_to(self.folder)), file.read_bytes())
        self.copied[file] = state
