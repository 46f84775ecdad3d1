"""Exchanges values between the processes of a run.

Every process calls every function here, in the same order; one process alone sends nothing.
"""

import pickle
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.errors import kind_of

BYTES = 500  # of a text
LEAST_BYTES = 1024  # sizes are rounded up, since each size is one more program to compile

T = TypeVar("T")


class Elsewhere(Exception):
  """Another process of the run failed; the message names it."""


def text_of_process_0(text: str) -> str:
  """Returns the first BYTES bytes of the text that process 0 passes, on every process."""
  if jax.process_count() == 1:
    return text
  sent = np.frombuffer(text.encode(errors="replace")[:BYTES].ljust(BYTES), np.uint8)
  return bytes(multihost_utils.broadcast_one_to_all(sent)).decode(errors="replace").strip()


def gather(value: T) -> list[T]:
  """Returns the values of all processes, in order; a value is pickled and should be small."""
  if jax.process_count() == 1:
    return [value]
  sent = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(sent.size))
  width = max(LEAST_BYTES, 1 << int(sizes.max() - 1).bit_length())
  rows = multihost_utils.process_allgather(np.pad(sent, (0, width - sent.size)))
  return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes)]


def together(make: Callable[[], T]) -> T:
  """Returns `make()`, once it has returned on every process.

  Raises:
    Exception: the error of `make()` here. If it failed on other processes only: an error of the
      same kind if theirs was a GrpoError, else Elsewhere; both with their message.
  """
  if jax.process_count() == 1:
    return make()
  failure: Exception | None = None
  try:
    value = make()
  except Exception as error:  # raised below, when the others know
    failure = error
  failures = gather(failure and (kind_of(failure), f"{failure}", type(failure).__name__))
  if failure is not None:
    raise failure
  for process, elsewhere in enumerate(failures):
    if elsewhere:
      kind, text, name = elsewhere
      raise kind(text) if kind else Elsewhere(f"host {process}: {name}: {text}")
  return value


def share(x: jax.Array | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns this process's part of a [P, G, ...] array (zeros elsewhere) and its mask, [P, G] bool.

  Each entry belongs to one process, even if several hold it. A numpy array belongs to this process.
  """
  if isinstance(x, np.ndarray):
    return x, np.ones(x.shape[:2], bool)
  here, mask = np.zeros(x.shape, x.dtype), np.zeros(x.shape[:2], bool)
  shards = [shard for shard in x.addressable_shards if shard.replica_id == 0]
  for shard in shards:
    shard.data.copy_to_host_async()
  for shard in shards:
    here[shard.index], mask[shard.index[:2]] = shard.data, True
  return here, mask
