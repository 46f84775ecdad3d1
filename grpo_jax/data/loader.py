"""Order, shuffling, epochs and mixtures of data sets (grain), a position that survives a restart, and prompt arrays.

The whole order is a pure function of (data sets, weights, seed): batch i holds examples i * P .. (i + 1) * P - 1 of
it, and host r of n the r-th block of those rows. So the position is one number, whatever the number of hosts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.types import Example, Prompts


class Batches:
  """An endless (or `epochs` long) iterator over batches: a list of this host's P / hosts rows.

  Each epoch of each data set is shuffled anew. After the last epoch's last example the rows that are left of the
  batch are None; a mixture's epochs end with the data set that is used up first.

  Args:
    sources: data sets, each with `__len__` and `__getitem__`.
    weights: share of each data set in the mixture, any scale; None: equal.
    prompts: P, rows of a batch over all hosts.
    seed: of the shuffling.
    shuffle: False keeps each data set's order.
    epochs: passes over each data set; 0: without end.
    rank, hosts: which block of the rows is this host's.

  Raises:
    SettingError: an empty data set, a weight that is not positive, P that the hosts do not divide.
  """

  def __init__(
    self,
    sources: Sequence[Sequence[Example]],
    weights: Sequence[float] | None = None,
    *,
    prompts: int,
    seed: int,
    shuffle: bool = True,
    epochs: int = 0,
    rank: int = 0,
    hosts: int = 1,
  ):
    if prompts < 1 or prompts % hosts:
      raise SettingError(f"data.prompts = {prompts}: has to be a multiple of the number of hosts, {hosts}")
    if epochs < 0:
      raise SettingError(f"data.epochs = {epochs}: 0 (without end) or more")
    weights = [1.0] * len(sources) if weights is None else list(weights)
    if len(weights) != len(sources) or not all(0 < weight < float("inf") for weight in weights):
      raise SettingError(f"data.mixture has weights {weights}: one positive number for each data set")
    if not sources or not all(map(len, sources)):
      raise SettingError(f"data sets of {[len(each) for each in sources]} examples: each needs at least one")
    parts = [_ordered(each, seed + i, shuffle, epochs) for i, each in enumerate(sources)]
    self._data = parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, weights)
    self._sizes = [len(each) for each in sources]
    self._prompts, self._rank, self._hosts = prompts, rank, hosts
    self._index = 0

  def __iter__(self) -> Iterator[list[Example | None]]:
    return self

  def __next__(self) -> list[Example | None]:
    if self._index >= len(self._data):
      raise StopIteration
    rows = self._prompts // self._hosts
    first = self._index + self._rank * rows
    batch = [self._data[i] if i < len(self._data) else None for i in range(first, first + rows)]
    self._index += self._prompts
    return batch

  def get_state(self) -> dict[str, Any]:
    """What a checkpoint keeps: how many examples all hosts have taken, and of which data sets."""
    return {"index": self._index, "sizes": list(self._sizes)}

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from `get_state()` of any number of hosts.

    Raises:
      SettingError: the state belongs to data sets of other sizes, whose order is another one.
    """
    if list(state["sizes"]) != self._sizes:
      raise SettingError(
        f"data: the checkpoint was made with data sets of {list(state['sizes'])} examples, and these have "
        f"{self._sizes}; go on with the same data, or start in a new workdir"
      )
    self._index = int(state["index"])


def in_order(
  source: Sequence[Example], prompts: int, limit: int = 0, rank: int = 0, hosts: int = 1
) -> Iterator[list[Example | None]]:
  """The first `limit` examples (0: all) once, in order, for evaluation; the last batch is filled up with None."""
  if prompts < 1 or prompts % hosts:
    raise SettingError(f"eval.batch = {prompts}: has to be a multiple of the number of hosts, {hosts}")
  size = min(limit or len(source), len(source))
  rows = prompts // hosts
  for start in range(rank * rows, -(-size // prompts) * prompts, prompts):
    yield [source[i] if i < size else None for i in range(start, start + rows)]


def to_prompts(
  examples: Sequence[Example | None], render: Callable[[str], list[int]], max_length: int, on_long: str = "skip"
) -> tuple[Prompts, int]:
  """Prompt arrays of a batch, and how many of its prompts were longer than `max_length`.

  Args:
    examples: P rows; None gives a row of length 0, which only fills the batch.
    render: question -> prompt token ids.
    max_length: Lp.
    on_long: a longer prompt is "skip": its row has length 0; "cut": its last Lp tokens are kept.

  Returns:
    Prompts with tokens [P, Lp] int32, padded on the right with 0, and lengths [P] int32, both numpy; and the count.

  Raises:
    SettingError: unknown `on_long`, or a prompt without a token.
  """
  if on_long not in ("skip", "cut"):
    raise SettingError(f"data.on_long = {on_long!r}: skip or cut")
  if max_length < 1:
    raise SettingError(f"data.max_prompt_length = {max_length}: at least 1")
  tokens = np.zeros((len(examples), max_length), np.int32)
  lengths = np.zeros(len(examples), np.int32)
  long = 0
  for row, each in enumerate(examples):
    if each is None:
      continue
    ids = render(each.question)
    if not ids:
      raise SettingError(f"data: the prompt of the question {each.question[:80]!r} has no token")
    if len(ids) > max_length:
      long += 1
      ids = ids[-max_length:] if on_long == "cut" else []
    tokens[row, : len(ids)] = ids
    lengths[row] = len(ids)
  return Prompts(tokens, lengths), long


def _ordered(source: Sequence[Example], seed: int, shuffle: bool, epochs: int) -> grain.MapDataset:
  data = grain.MapDataset.source(source).seed(seed % 2**32)
  return (data.shuffle() if shuffle else data).repeat(epochs or None)
