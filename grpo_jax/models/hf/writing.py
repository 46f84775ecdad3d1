"""Writes folders of tensors beside their target, whose name they take when they are complete.

What is written is gathered to the host one tensor at a time.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np
import safetensors
import safetensors.numpy

from grpo_jax.errors import SettingError, StorageError
from grpo_jax.io import storage
from grpo_jax.models.shape import Leaf
from grpo_jax.sandbox import model_folder


def check_target(folder: str | os.PathLike, marker: str, what: str) -> storage.Path:
  """Returns the path of a folder that may be written or replaced.

  Args:
    folder: where to write.
    marker: the file that marks an earlier folder of this kind.
    what: contents of such a folder, in words.
  """
  target = storage.absolute(folder)
  # in a bucket, one whose writing ended before its marker is ours as well
  begun = storage.in_bucket(target) and part_of(target).exists()
  is_run = (target / "metrics.jsonl").exists()  # which has a config.json, too
  earlier = begun or (target / marker).is_file() and not is_run
  if target.exists() and not earlier and (target.is_file() or any(target.iterdir())):
    raise SettingError(
      f"export: {target} holds something else than {what}; an empty or new folder would work"
    )
  return target


def part_of(target: storage.Path) -> storage.Path:
  """Returns the folder in which what replaces `target` is written."""
  return target.with_name(f".{target.name}.part")


@contextlib.contextmanager
def replacing(target: storage.Path, last: str) -> Iterator[storage.Path | None]:
  """Yields a new folder that replaces `target` as a whole at the end; None on all but one host.

  At any moment but a rename, `target` is complete or absent. In a bucket it is complete once it has
  the file `last`.

  Raises:
    StorageError: the disk does not take the files; the same command writes them again.
  """
  writer, begun = jax.process_index() == 0, False
  part = part_of(target)
  try:
    if writer:
      storage.remove(part)
      part.mkdir(parents=True)
    yield part if writer else None
    if writer:
      begun = True
      _replace(part, target, last)
  except (OSError, safetensors.SafetensorError) as error:
    if begun and storage.in_bucket(target):
      storage.remove(target)  # half of it would be taken for somebody else's
    if writer:
      storage.remove(part)
    kept = (
      "the same command writes it again"
      if storage.in_bucket(target)
      else "what was there is untouched"
    )
    raise StorageError(
      f"export: {target} cannot be written ({model_folder.first_line(error)}); {kept}"
    ) from error


def save_tensors(file: storage.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file with the permissions of its folder."""
  with storage.writing(file) as local:
    safetensors.numpy.save_file(dict(tensors), str(local), metadata={"format": "pt"})
  if not storage.in_bucket(file.parent):  # safetensors restricts its files to their owner
    os.chmod(file, os.stat(file.parent).st_mode & 0o666)


def _replace(part: storage.Path, target: storage.Path, last: str) -> None:
  """Renames `part` to `target`; an earlier folder is deleted last, but in a bucket first.

  A bucket renames file by file; the file `last` comes last and marks the folder as complete.
  """
  if storage.in_bucket(target):
    storage.remove(target)
    storage.rename(part, target, last=last)
    return
  old = target.with_name(f".{target.name}.old")
  storage.remove(old)
  if target.exists():
    storage.rename(target, old)
  try:
    storage.rename(part, target)
  except OSError:
    if old.exists():
      storage.rename(old, target)
    raise
  storage.remove(old)


def on_host(leaf: Leaf, layer: int | None, dtype: str) -> np.ndarray:
  """Returns one leaf, or one layer of it, on the host, whole, in the file's dtype."""
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    return np.ascontiguousarray(gathered(leaf, layer, dtype).addressable_data(0))
  return np.ascontiguousarray(_selected(leaf, layer, dtype))


def gathered(leaf: jax.Array, layer: int | None, dtype: str) -> jax.Array:
  """Returns one leaf, or one layer of it, on every device, by one program for all layers."""
  assert isinstance(leaf.sharding, jax.sharding.NamedSharding)
  everywhere = jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec())
  return jitted_selected(everywhere)(leaf, layer, dtype)


@functools.cache
def jitted_selected(sharding: jax.sharding.Sharding) -> Callable[..., jax.Array]:
  """Returns `_selected` jitted, with that sharding of what it returns."""
  return jax.jit(_selected, static_argnames="dtype", out_shardings=sharding)


def _selected(leaf: Leaf, layer: int | None, dtype: str) -> Leaf:
  return (leaf if layer is None else leaf[layer]).astype(dtype)
