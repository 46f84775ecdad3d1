"""Keeps what a learning reward model may learn from: the pairs of each step, on disk.

DIR/replay/N.npz has the pairs of step N; a process that resumes before that step writes it again,
with the same content. An iteration learns from its own pairs and, in each batch, from a share of
earlier ones. For a process reward model, groups of samples with labelled steps take the place of
pairs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.distributed import hosts
from grpo_jax.errors import CheckpointError
from grpo_jax.io import storage
from grpo_jax.loops.offline import read_samples, template, write_samples
from grpo_jax.objectives import common
from grpo_jax.types import HostRollouts, HostScored


class Lesson(NamedTuple):
  """A batch for the reward model."""

  pairs: HostRollouts  # [B, 2, ...]; groups of length 0 fill the last one
  new: int  # pairs of this iteration
  replayed: int  # pairs of earlier ones


class Replay:
  """Keeps the pairs of a run's steps on disk, as long as they may be drawn."""

  def __init__(self, folder: str):
    self.folder = storage.place(folder) / "replay"

  def path(self, step: int) -> storage.Path:
    """Returns the file of a step."""
    return self.folder / f"{step}.npz"

  def add(self, step: int, pairs: HostScored) -> None:
    """Writes the pairs `[N, 2, ...]` of a step, with prompts of one width in the whole run."""
    if jax.process_index() == 0:
      write_samples(self.path(step), pairs)
    hosts.gather(None)  # every process reads them

  def read(self, steps: Sequence[int]) -> HostScored:
    """Returns the pairs of several steps in order."""
    parts = []
    for step in steps:
      pairs, error = read_samples(self.path(step), None, template())
      if pairs is None:
        raise CheckpointError(
          f"{self.path(step)}: {error or 'is missing'}; put the file back, or begin anew in "
          "another --workdir"
        )
      parts.append(pairs)
    return joined(parts)

  def forget(self, before: int) -> None:
    """Removes the files of earlier steps."""
    if jax.process_index() == 0 and self.folder.is_dir():
      for path in self.folder.iterdir():
        if path.suffix == ".npz" and path.stem.isdigit() and int(path.stem) < before:
          path.unlink()


def lessons(
  new: HostScored,
  past: HostScored | None,
  *,
  batch: int,
  share: float,
  epochs: int,
  seed: int | tuple[int, int],
) -> Iterator[Lesson]:
  """Yields the batches of one iteration (DeepSeekMath, section 4.1.4: 10% of historical data).

  Each epoch has every new pair once, in a new order. The rest of each batch is drawn from the past
  without replacement over all epochs; when nothing is left of it, batches have new pairs alone.

  Args:
    new: `[N, 2, ...]`.
    past: the same of earlier iterations, None if there are none.
    batch: B, pairs in a batch.
    share: of past pairs in a batch, from 0 to below 1; above 0 there is at least one in a batch of
      two or more, and always room for a new one.
    epochs: passes over the new pairs.
    seed: of the order.
  """
  rng = np.random.default_rng(seed)
  wanted = min(max(round(share * batch), share > 0), batch - 1)
  nothing = jax.tree.map(lambda x: np.zeros((1, *x.shape[1:]), x.dtype), new)
  pool = joined([new, nothing] if past is None else [new, past, nothing])  # the last one is empty
  left = len(new.lengths) + rng.permutation(len(pool.lengths) - 1 - len(new.lengths))
  for _ in range(epochs):
    order = rng.permutation(len(new.lengths))
    while len(order):
      old, left = left[:wanted], left[wanted:]
      now, order = order[: batch - len(old)], order[batch - len(old) :]
      index = np.concatenate([now, old, np.full(batch - len(old) - len(now), -1)]).astype(np.int32)
      yield Lesson(common.written(chosen(pool, index)), len(now), len(old))


def joined(parts: Sequence[HostScored]) -> HostScored:
  """Returns the groups of several parts in order."""
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def chosen(pairs: HostScored, index: np.ndarray) -> HostScored:
  """Returns the groups at these indices."""
  return jax.tree.map(lambda x: x[index], pairs)
