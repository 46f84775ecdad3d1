"""Reads slices of tensors from safetensors files; files of a bucket are copied to this disk first.

In the messages, `init_from` is the setting by which a person names the folder.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors

from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

ROWS = 4096  # rows of two matrices that are compared at a time


def copies(
  path: storage.Path,
  files: set[storage.Path],
  temporary: pathlib.Path,
  progress: storage.Progress | None,
) -> dict[storage.Path, pathlib.Path]:
  """Returns the local path of each file; files of a bucket are copied to `temporary`."""
  if not storage.in_bucket(path):
    return {file: pathlib.Path(file) for file in files}
  try:
    return storage.download(sorted(files), temporary, progress)
  except OSError as error:
    raise SettingError(
      f"init_from={path}: cannot be copied to this disk ({model_folder.first_line(error)})"
    ) from error


class Files:
  """Reads slices of tensors by their names; each file of the folder is opened once."""

  def __init__(
    self,
    path: storage.Path,
    files: dict[str, pathlib.Path],
    dtype: str,
    total: int,
    progress: storage.Progress | None,
  ):
    self.path, self.files, self.dtype = path, files, np.dtype(dtype)
    self.done, self.total, self.progress = 0, total, progress
    self.opened: dict[pathlib.Path, Any] = {}

  def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
    """Returns that slice of a tensor in the target dtype; refuses NaN and infinity."""
    with self._guarded(name):
      values = self._view(name)[index].astype(self.dtype)
    if not _finite(values):
      bad = int(np.count_nonzero(~np.isfinite(values)))
      raise DataError(
        f"init_from={self.path}: {name} has {bad} weights that are NaN or infinite; download "
        f"{self.files[name].name} again, or take an earlier checkpoint"
      )
    self.done += values.nbytes
    if self.progress:
      self.progress(self.done, self.total)
    return values

  def same(self, one: str, other: str) -> bool:
    """Returns whether two matrices are equal, read a few rows at a time."""
    with self._guarded(other):
      a, b = self._view(one), self._view(other)
      if a.get_shape() != b.get_shape():
        return False
      rows, _ = a.get_shape()
      blocks = [slice(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]
      return all(np.array_equal(a[block], b[block]) for block in blocks)

  def _view(self, name: str) -> Any:
    """Returns a tensor whose slices can be read, in the file's dtype."""
    file = self.files[name]
    if file not in self.opened:
      self.opened[file] = safetensors.safe_open(str(file), framework="np")
    return self.opened[file].get_slice(name)

  @contextlib.contextmanager
  def _guarded(self, name: str) -> Iterator[None]:
    """Turns an error of the block into a message that the tensor cannot be read."""
    try:
      yield
    except (safetensors.SafetensorError, OSError) as error:
      raise DataError(
        f"init_from={self.path}: {name} cannot be read ({model_folder.first_line(error)})"
      ) from error


def _finite(values: np.ndarray) -> bool:
  """Returns whether all numbers are finite, by the extremes, which needs no mask of their size."""
  return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))
