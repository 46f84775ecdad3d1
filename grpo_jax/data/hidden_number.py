"""Numbers to be guessed (environments/guess.py); the question is always the same.

The worked solution is a game of somebody who remembers what was said and does not halve what is
left: each guess is any of the numbers that are still possible, all equally likely. It ends when the
number is found.
"""

import operator
import random
from collections.abc import Sequence
from typing import SupportsIndex

from ml_collections import ConfigDict

from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.types import Example

RANGES: dict[str, kinds.Kind] = {
  "largest": kinds.Whole(2, 10**6),
  "games": kinds.Whole(1, 10**6),
  "seed": kinds.Whole(0),
}


class HiddenNumbers(Sequence[Example]):
  """Holds the games of a split by index; the number of a game is 1 + index mod `largest`."""

  def __init__(self, split: str, largest: int, games: int, seed: int):
    self._split, self._largest, self._seed = split, largest, seed
    self._size = largest if split == "test" else largest * games

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: SupportsIndex) -> Example:  # type: ignore[override]  # no slices
    index = operator.index(index)
    if not 0 <= index < self._size:
      raise IndexError(f"game {index} of {self._size}")
    number = 1 + index % self._largest
    rng = random.Random(f"{self._seed}/{self._split}/{index}")
    question = f"Guess a number from 1 to {self._largest}."
    return Example(question, _play(number, self._largest, rng), str(number), {"index": index})


def _play(number: int, largest: int, rng: random.Random) -> str:
  """Returns a game, as `environments/guess.py` would have answered it."""
  low, high, lines = 1, largest, []
  while True:
    guess = low + int(rng.random() * (high - low + 1))
    lines.append(str(guess))
    if guess == number:
      return "\n".join(lines)
    lines.append("higher" if guess < number else "lower")
    low, high = (guess + 1, high) if guess < number else (low, guess - 1)


def settings() -> ConfigDict:
  """Returns the section `data.hidden_number`."""
  c = ConfigDict()
  c.largest = 31  # numbers go from 1 to this one
  c.games = 1000  # different games of each number that are trained on; a test has one of each
  c.seed = 0  # of the games
  return c


def source(split: str, path: str, cfg: ConfigDict) -> HiddenNumbers:
  """Returns the games of a split, "train" or "test"; `path` must be empty."""
  kinds.check(cfg, RANGES, "data.hidden_number.")
  if path:
    raise SettingError(f"data.path={path!r}: hidden_number reads no files; leave it empty")
  if split not in ("train", "test"):
    raise SettingError(f"data split {split!r}: hidden_number has test, train")
  return HiddenNumbers(split, **dict(cfg))
