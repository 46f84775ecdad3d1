"""Batches of examples from shuffled and mixed data sets (grain), with a position that is saved.

The whole order is a pure function of (data sets, weights, seed), and batch i holds its examples
i * P to (i + 1) * P - 1. So the position is one number. Every host makes the whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import grain
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed import inputs
from grpo_jax.errors import CheckpointError, DataError, SettingError
from grpo_jax.types import Example, Prompts

Item = TypeVar("Item")


class Batches(Generic[Item]):
  """Yields batches of P examples without end; each epoch of a data set is shuffled anew.

  Args:
    sources: data sets, each with `__len__` and `__getitem__`.
    weights: the share of each data set in the mixture, in any scale; None: equal shares.
    prompts: P, the number of examples in a batch.
    seed: the seed of the shuffling.
    shuffle: False keeps the order of each data set.
  """

  def __init__(
    self,
    sources: Sequence[Sequence[Item]],
    weights: Sequence[float] | None = None,
    *,
    prompts: int,
    seed: int,
    shuffle: bool = True,
  ):
    weights = [1.0] * len(sources) if weights is None else list(weights)
    if len(weights) != len(sources) or not all(0 < weight < float("inf") for weight in weights):
      raise SettingError(
        f"data.mixture has weights {weights}: one positive number for each data set"
      )
    self._sizes = [len(source) for source in sources]
    if not sources or not all(self._sizes):
      raise DataError(f"data sets of {self._sizes} examples: each needs at least one")
    self._sources = sources
    endless = [_endless(source, seed + i, shuffle) for i, source in enumerate(sources)]
    self._data = endless[0] if len(endless) == 1 else grain.MapDataset.mix(endless, weights)
    self.size = sum(self._sizes)  # examples in all data sets
    self._prompts = prompts
    self._index = 0

  def __iter__(self) -> Iterator[list[Item]]:
    return self

  def __next__(self) -> list[Item]:
    batch = [self._data[i] for i in range(self._index, self._index + self._prompts)]
    self._index += self._prompts
    return batch

  def first(self, count: int) -> list[Item]:
    """Returns the first examples of the whole order, without a change of the position."""
    return [self._data[i] for i in range(count)]

  def contents(self) -> dict[str, str]:
    """Returns the size of each data set and digests of its first and last example (inputs.py)."""
    contents: dict[str, str] = {}
    for i, source in enumerate(self._sources):
      name = "training data" if len(self._sources) == 1 else f"training data {i}"
      contents |= inputs.describe_examples(name, source)
    return contents

  def get_state(self) -> Json:
    """Returns the number of examples taken and the sizes of the data sets, for a checkpoint."""
    return {"index": self._index, "sizes": list(self._sizes)}

  def set_state(self, state: Json) -> None:
    """Restores the position of `get_state()`; data sets of other sizes have another order."""
    if list(state["sizes"]) != self._sizes:
      raise CheckpointError(
        f"data: the checkpoint was made with data sets of {list(state['sizes'])} examples, and "
        f"these have {self._sizes}; resume with the same data, or start in a new workdir"
      )
    self._index = int(state["index"])


def in_order(
  source: Sequence[Example], prompts: int, limit: int = 0
) -> Iterator[list[Example | None]]:
  """Yields the first `limit` examples (0: all) once, in order, in batches filled up with None."""
  size = min(limit or len(source), len(source))
  for start in range(0, size, prompts):
    yield [source[i] if i < size else None for i in range(start, start + prompts)]


def to_prompts(
  examples: Sequence[Example | None],
  render: Callable[[str], list[int]],
  max_length: int,
  on_long: str = "skip",
) -> tuple[Prompts, int]:
  """Returns the prompt arrays of a batch, and the number of prompts that are left out as too long.

  Args:
    examples: P examples; None becomes a prompt of length 0, which only fills the batch.
    render: question -> prompt token ids.
    max_length: Lp.
    on_long: treatment of longer prompts: "skip" gives length 0, "cut" keeps the last Lp tokens.

  Returns:
    Prompts with tokens [P, Lp] int32, padded on the right with 0, and lengths [P] int32, both
    numpy; and the number of prompts that were skipped.
  """
  tokens = np.zeros((len(examples), max_length), np.int32)
  lengths = np.zeros(len(examples), np.int32)
  long = 0
  for p, example in enumerate(examples):
    if example is None:
      continue
    ids = render(example.question)
    if not ids:
      raise DataError(f"data: the prompt of the question {example.question[:80]!r} has no token")
    if len(ids) > max_length:
      long += on_long != "cut"
      ids = ids[-max_length:] if on_long == "cut" else []
    tokens[p, : len(ids)] = ids
    lengths[p] = len(ids)
  return Prompts(tokens, lengths), long


def _endless(source: Sequence[Item], seed: int, shuffle: bool) -> grain.MapDataset:
  """Returns a data set repeated without end, with a new order in each epoch."""
  data = grain.MapDataset.source(source).seed(seed % 2**32)
  return (data.shuffle() if shuffle else data).repeat(None)
