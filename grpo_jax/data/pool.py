"""Prompts that are solved always or never come again less often: on them every advantage is 0.

Where a group is all right or all wrong, GRPO learns nothing from it (DAPO, arXiv 2503.14476,
section 3.2, samples others in its place; here the samples are not drawn in the first place). Each
prompt's pass rate when it was last sampled is kept, and saved with the position in the data.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grpo_jax.data.loader import Batches
from grpo_jax.types import Example

REDRAW = 0xD1FF  # keeps the chances apart from other random numbers of the same seed


class Pool:
  """An endless iterator over batches, each a list of P examples, which passes over some whose pass
  rate is 0 or 1.

  What comes when is a pure function of the order, the seed and the pass rates noted so far. In one
  batch as many are
  passed over as the data has, at most: then whatever comes is taken, so that a batch ends where all
  are settled.

  Args:
    order: the examples, one in a batch.
    prompts: P.
    redraw: the chance with which an example is taken in its turn if its pass rate was 0 or 1 the
      last time, above 0.
    seed: of these chances.
  """

  def __init__(self, order: Batches, prompts: int, redraw: float, seed: int):
    self._order, self._prompts, self._redraw, self._seed = order, prompts, redraw, seed
    self._rates: dict[str, float] = {}  # by `key`
    self._turns = 0  # that were come to
    self._passed = 0  # of these
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
    """Keeps the pass rates of a batch.

    Args:
      examples: P of them; None is left out.
      solved: `[P, G]`, 1 for right, 0 for wrong, NaN for a sample of which nothing is known.
    """
    for example, row in zip(examples, solved, strict=True):
      known = row[~np.isnan(row)]
      if example is not None and known.size:
        self._rates[key(example)] = float(known.mean())

  def metrics(self) -> dict[str, float]:
    """How many prompts have a pass rate, the shares of 0 and 1 among these, and how often one was
    passed over.
    """
    rates = np.array([*self._rates.values()])
    shares = (
      {"pool/never": (rates == 0).mean(), "pool/always": (rates == 1).mean()} if rates.size else {}
    )
    return {"pool/prompts": rates.size, "pool/passed_over": self._passed} | {
      n: float(x) for n, x in shares.items()
    }

  def contents(self) -> dict[str, str]:
    """Returns those of the order; see `Batches.contents`."""
    return self._order.contents()

  def get_state(self) -> dict[str, Any]:
    """Returns what a checkpoint keeps: the position in the order, and the pass rates."""
    own = {"rates": dict(self._rates), "turns": self._turns, "passed_over": self._passed}
    return self._order.get_state() | own

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from where `get_state()` was called.

    Raises:
      SettingError: see `Batches.set_state`.
    """
    self._order.set_state(state)
    self._rates, self._turns, self._passed = (
      dict(state["rates"]),
      int(state["turns"]),
      int(state["passed_over"]),
    )

  def _settled(self, example: Example) -> bool:
    """Whether all samples of an example were right, or all wrong, the last time."""
    return self._rates.get(key(example)) in (0.0, 1.0)

  def _chance(self) -> float:
    """A number from [0, 1) that belongs to this turn."""
    return np.random.default_rng((REDRAW, self._seed % 2**32, self._turns)).random()


def key(example: Example) -> str:
  """Returns what tells an example from others: 12 letters, of its question and answer."""
  return hashlib.blake2b(
    f"{example.question}\0{example.answer}".encode(), digest_size=6
  ).hexdigest()
