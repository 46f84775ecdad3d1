"""Draws prompts less often that are always solved or never: on them every advantage is 0.

If a group is all right or all wrong, GRPO learns nothing from it. DAPO (arXiv 2503.14476, section
3.2) samples other prompts in its place; here such prompts are passed over before they are sampled.
The pass rate of each prompt when it was last sampled is saved with the position in the data.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.data.loader import Batches
from grpo_jax.distributed import inputs
from grpo_jax.types import Example

REDRAW = 0xD1FF  # separates these random numbers from others of the same seed


class Pool:
  """Yields batches of P examples without end, and passes over some with pass rate 0 or 1.

  The order is a pure function of that of the data, the seed and the pass rates noted so far. For
  one batch, at most as many examples are passed over as the data has; after that every example is
  taken, so that a batch ends even if all are settled.

  Args:
    order: the examples, one in a batch.
    prompts: P.
    redraw: probability, above 0, with which an example is taken if its last pass rate was 0 or 1.
    seed: of these draws.
  """

  def __init__(self, order: Batches, prompts: int, redraw: float, seed: int):
    self._order, self._prompts, self._redraw, self._seed = order, prompts, redraw, seed
    self._rates: dict[str, float] = {}  # by `key`
    self._turns = 0  # examples that were considered
    self._passed = 0  # examples that were passed over
    self.first = order.first

  def __iter__(self) -> Iterator[list[Example]]:
    return self

  def __next__(self) -> list[Example]:
    batch: list[Example] = []
    most = self._passed + self._order.size
    while len(batch) < self._prompts:
      (example,) = next(self._order)
      self._turns += 1
      if self._passed < most and self._settled(example) and self._chance() >= self._redraw:
        self._passed += 1
      else:
        batch.append(example)
    return batch

  def note(self, examples: Sequence[Example | None], solved: np.ndarray) -> None:
    """Saves the pass rates of a batch.

    Args:
      examples: P of them; None is left out.
      solved: `[P, G]`, 1 for right, 0 for wrong, NaN for unknown.
    """
    for example, row in zip(examples, solved, strict=True):
      known = row[~np.isnan(row)]
      if example is not None and known.size:
        self._rates[key(example)] = float(known.mean())

  def metrics(self) -> dict[str, float]:
    """Returns the number of pass rates, the shares of 0 and 1, and the examples passed over."""
    rates = np.array([*self._rates.values()])
    metrics: dict[str, float] = {"pool/prompts": rates.size, "pool/passed_over": self._passed}
    if rates.size:
      metrics["pool/never"] = float((rates == 0).mean())
      metrics["pool/always"] = float((rates == 1).mean())
    return metrics

  def contents(self) -> dict[str, str]:
    """Returns the contents of the data, see `Batches.contents`."""
    return self._order.contents()

  def get_state(self) -> Json:
    """Returns the position in the data and the pass rates, for a checkpoint."""
    state = {"rates": dict(self._rates), "turns": self._turns, "passed_over": self._passed}
    return self._order.get_state() | state

  def set_state(self, state: Json) -> None:
    """Restores the state of `get_state()`."""
    self._order.set_state(state)
    self._rates = dict(state["rates"])
    self._turns, self._passed = int(state["turns"]), int(state["passed_over"])

  def _settled(self, example: Example) -> bool:
    """Returns whether all samples of an example were right, or all wrong, the last time."""
    return self._rates.get(key(example)) in (0.0, 1.0)

  def _chance(self) -> float:
    """Returns the number from [0, 1) that belongs to this turn."""
    return np.random.default_rng((REDRAW, self._seed % 2**32, self._turns)).random()


def key(example: Example) -> str:
  """Returns a key of 12 letters that identifies an example.

  It goes by question and answer, and by the rest where there is no answer: games of one kind begin
  with the same words.
  """
  text = f"{example.question}\0{example.answer}"
  text += "" if example.answer else f"\0{inputs.described(example.meta)}"
  return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
