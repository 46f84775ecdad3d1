"""What each process of a run has, said to all of its processes.

Every process calls every function here, in the same order; with one process nothing is sent.
"""

import pickle
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.errors import SettingError

BYTES = 500  # of a text
# of what is gathered: sizes are rounded up, since each is one more program to compile
LEAST_BYTES = 1024

T = TypeVar("T")


class Elsewhere(Exception):
  """What went wrong on another process of the run, which is named."""


def text_of_process_0(text: str) -> str:
  """Returns what process 0 passes, on every process; at most its first BYTES bytes."""
  if jax.process_count() == 1:
    return text
  sent = np.frombuffer(text.encode(errors="replace")[:BYTES].ljust(BYTES), np.uint8)
  return bytes(multihost_utils.broadcast_one_to_all(sent)).decode(errors="replace").strip()


def gather(value: T) -> list[T]:
  """Returns what each process passes, by process; it must be possible to pickle it, and it should
  be small.
  """
  if jax.process_count() == 1:
    return [value]
  sent = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(sent.size))
  width = max(LEAST_BYTES, 1 << int(sizes.max() - 1).bit_length())
  found = multihost_utils.process_allgather(np.pad(sent, (0, width - sent.size)))
  return [pickle.loads(each[:size].tobytes()) for each, size in zip(found, sizes)]


def together(make: Callable[[], T]) -> T:
  """Returns `make()`, once that of every process has returned.

  Raises:
    Exception: whatever `make()` raised here. Where it raised on other processes alone, a
      SettingError if theirs was one, and Elsewhere with their words if not.
  """
  if jax.process_count() == 1:
    return make()
  value, error = None, None
  try:
    value = make()
  except Exception as cause:  # to be raised once the others know
    error = cause
  said = gather(error and (isinstance(error, SettingError), f"{error}", type(error).__name__))
  if error is not None:
    raise error
  for process, each in enumerate(said):
    if each:
      is_setting, text, name = each
      raise SettingError(text) if is_setting else Elsewhere(f"host {process}: {name}: {text}")
  return value


def share(x: jax.Array | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the part of a [P, G, ...] array that is this process's own, zeros elsewhere; and which
  it is, [P, G] bool.

  Each entry is one process's own, also where several hold it. A numpy array is all this process's
  own.
  """
  if isinstance(x, np.ndarray):
    return x, np.ones(x.shape[:2], bool)
  here, own = np.zeros(x.shape, x.dtype), np.zeros(x.shape[:2], bool)
  mine = [shard for shard in x.addressable_shards if shard.replica_id == 0]
  for shard in mine:
    shard.data.copy_to_host_async()
  for shard in mine:
    here[shard.index], own[shard.index[:2]] = shard.data, True
  return here, own
