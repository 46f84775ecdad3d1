"""Pairs for a reward model that goes on learning: those of the samples of each step, on disk, and
the past replayed.

DIR/replay/N.npz has the pairs of the step N: what a process that was killed had not got to is
written again, with the same content. An iteration learns from its own pairs and, in each batch,
from a share of pairs of earlier iterations. A process reward model learns from groups of samples
with labelled steps, which stand here in the place of pairs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.loops.offline import read_samples, template, write_samples
from grpo_jax.objectives import common
from grpo_jax.types import Rollouts


class Lesson(NamedTuple):
  """A batch for the reward model."""

  pairs: Rollouts  # numpy, [B, 2, ...]; groups of length 0 fill the last one
  new: int  # how many are of this iteration
  replayed: int  # and of earlier ones


class Replay:
  """The pairs of a run's steps, on disk; only those that may be drawn again are kept."""

  def __init__(self, folder: str):
    """Names the folder; it is made with the first pairs."""
    self.folder = storage.place(folder) / "replay"

  def path(self, step: int) -> storage.Path:
    """The file of a step."""
    return self.folder / f"{step}.npz"

  def add(self, step: int, pairs: Rollouts) -> None:
    """Writes the pairs of a step, `[N, 2, ...]` numpy with prompts of one width in the whole run; N
    may be 0.

    Raises:
      StorageError: the folder does not take it.
    """
    if jax.process_index() == 0:
      write_samples(self.path(step), pairs)
    hosts.gather(None)  # every process reads them

  def read(self, steps: Sequence[int]) -> Rollouts:
    """The pairs of some steps, one after the other.

    Raises:
      SettingError: a file is missing or damaged.
    """
    found = []
    for step in steps:
      pairs, error = read_samples(self.path(step), None, template())
      if pairs is None:
        raise SettingError(
          f"{self.path(step)}: {error or 'is missing'}; put the file back, or begin anew in "
          "another --workdir"
        )
      found.append(pairs)
    return joined(found)

  def forget(self, before: int) -> None:
    """Removes the files of steps before that one."""
    if jax.process_index() == 0 and self.folder.is_dir():
      for path in self.folder.iterdir():
        if path.stem.isdigit() and int(path.stem) < before:
          path.unlink()


def lessons(
  new: Rollouts, past: Rollouts | None, *, batch: int, share: float, epochs: int, seed: Any
) -> Iterator[Lesson]:
  """Yields the batches of one iteration (DeepSeekMath, arXiv 2402.03300, section 4.1.4: 10% of
  historical data).

  Every new pair comes once an epoch, in an order drawn anew. The rest of each batch is drawn from
  the past without replacement, over all epochs; when nothing is left of it, batches are of new
  pairs alone.

  Args:
    new: `[N, 2, ...]`, numpy.
    past: the same of earlier iterations, None where there are none.
    batch: B, pairs in a batch.
    share: of a batch that is of the past, from 0 to below 1; above 0 it is one at least.
    epochs: how often each new pair comes.
    seed: of the order.
  """
  rng, wanted = np.random.default_rng(seed), max(round(share * batch), share > 0)
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


def joined(parts: Sequence[Rollouts]) -> Rollouts:
  """The groups of several, one after the other."""
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def chosen(pairs: Rollouts, index: np.ndarray) -> Rollouts:
  """The groups at those places."""
  return jax.tree.map(lambda x: x[index], pairs)
