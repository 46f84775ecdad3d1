"""A stand-in for the package textarena, with one game: a coin is thrown and guessed."""

import enum
import random
import sys
import types

ObservationType = enum.Enum("ObservationType", "PROMPT PLAYER_ACTION GAME_MESSAGE")


class Coin:
  """Says whether a guess is right, until as many coins were thrown as the game has."""

  def __init__(self, coins: int = 3):
    self.state, self.coins, self.right = self, coins, 0

  def reset(self, num_players: int, seed: int) -> None:
    assert num_players == 1
    random.seed(seed)
    self.heard = [
      (-1, f"Guess {self.coins} coins.", ObservationType.PROMPT),
      (-1, f"The first lies on {random.choice(['wood', 'stone'])}.", ObservationType.GAME_MESSAGE),
    ]

  def get_current_player_observation(self) -> list:
    heard, self.heard = self.heard, []
    return heard

  def step(self, action: str) -> tuple[bool, dict]:
    right = action == random.choice(["heads", "tails"])
    self.right, self.coins = self.right + right, self.coins - 1
    self.heard += [
      (0, action, ObservationType.PLAYER_ACTION),
      (-1, "\nRight.\nNext?" if right else "\nWrong.\nNext?", ObservationType.GAME_MESSAGE),
    ]
    return self.coins == 0, {}

  def close(self) -> tuple[dict, dict]:
    return {0: self.right}, {}


class Unseeded(Coin):
  """Begins with another text each time."""

  count = 0

  def reset(self, num_players: int, seed: int) -> None:
    super().reset(num_players, seed)
    Unseeded.count += 1
    self.heard.append((-1, str(self.count), ObservationType.PROMPT))


def make(game: str, **settings: int) -> Coin:
  if game == "Words-v0":
    raise LookupError("\n*****\n  Resource 'words' not found.\n  Download it.\n*****\n")
  return {"Coin-v0": Coin, "Unseeded-v0": Unseeded}[game](**settings)


def install(monkeypatch) -> None:
  """Puts this package in the place of textarena until the test ends."""
  module = types.SimpleNamespace(make=make, ObservationType=ObservationType)
  monkeypatch.setitem(sys.modules, "textarena", module)
