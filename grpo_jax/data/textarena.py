"""Games of TextArena (arXiv 2504.11442) for one player, which environments/textarena.py plays.

    c.data.name = "textarena"
    c.data.textarena.game = "Mastermind-v0"
    c.data.textarena.settings = {"code_length": 3}      # the game's own settings
    c.environment.name = "textarena"

The question is what the game says before the first action. TextArena needs no network for this, but
some of its games do: those with words download lists, and a few ask another model.
"""

import operator
import random
from collections.abc import Sequence
from types import ModuleType
from typing import SupportsIndex

from ml_collections import ConfigDict

from grpo_jax.aliases import Json
from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.types import Example

INSTALL = "pip install textarena==0.7.4 -c constraints.txt"

RANGES: dict[str, kinds.Kind] = {
  "game": kinds.PATH,
  "games": kinds.Whole(1, 10**6),
  "seed": kinds.Whole(0, 2**31 - 1),
}


def settings() -> ConfigDict:
  """Returns the section `data.textarena`."""
  c = ConfigDict()
  c.game = "GuessTheNumber-v0"  # an id of textarena.envs.registration.ENV_REGISTRY
  c.games = 1000  # games in an epoch, of each split
  c.seed = 0  # of the first game
  c.settings = ConfigDict()  # the game's own, by name
  return c


class Games(Sequence[Example]):
  """Holds the games of a split by index; an example's meta is what `play` needs, without actions.

  Seeds of the split "test" are even and those of "train" odd, so that no seed is in both.
  """

  def __init__(self, split: str, game: str, games: int, seed: int, settings: Json):
    self._odd, self._size, self._seed = split == "train", games, seed
    self._game: Json = {"game": game, "settings": settings}

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: SupportsIndex) -> Example:  # type: ignore[override]  # no slices
    index = operator.index(index)
    if not 0 <= index < self._size:
      raise IndexError(f"game {index} of {self._size}")
    meta = self._game | {"seed": 2 * (self._seed + index) + self._odd}
    return Example(play(**meta, actions=())[0], "", "", meta)


def source(split: str, path: str, cfg: ConfigDict) -> Games:
  """Returns the games of a split, "train" or "test"; `path` must be empty."""
  kinds.check(cfg, RANGES, "data.textarena.")
  if path:
    raise SettingError(f"data.path={path!r}: textarena reads no files; leave it empty")
  if split not in ("train", "test"):
    raise SettingError(f"data split {split!r}: textarena has test, train")
  _package()
  own = cfg.settings.to_dict()
  games = Games(split, cfg.game, cfg.games, cfg.seed, own)
  try:
    same = games[0] == games[0]
  except Exception as error:  # a game checks its settings by errors of any kind
    reason = " ".join(f"{type(error).__name__}: {error}".replace("*", "").split())[:200]
    raise SettingError(
      f"data.textarena.game={cfg.game!r} with settings={own}: TextArena cannot play it here with "
      f"one player, {reason}"
    ) from error
  if not same:
    raise SettingError(
      f"data.textarena.game={cfg.game!r}: the game of a seed is another one each time; use another "
      "game"
    )
  return games


def play(
  game: str, settings: Json, seed: int, actions: Sequence[str]
) -> tuple[str, bool, float | None]:
  """Plays a game from its beginning.

  Args:
    game: its id, such as "Mastermind-v0".
    settings: its own, by name.
    seed: of what it draws at random.
    actions: of the player so far.

  Returns:
    What the game said after the last action, whether it is over, and its reward if it is.
  """
  ta = _package()
  before = random.getstate()  # games draw from the generator that everybody shares
  try:
    arena, over = ta.make(game, **settings), False
    arena.reset(num_players=1, seed=seed)
    for action in actions:
      arena.state.get_current_player_observation()  # what was said before is dropped
      over, _ = arena.step(action)
  finally:
    random.setstate(before)
  heard = arena.state.get_current_player_observation()
  said = [text for _, text, kind in heard if kind != ta.ObservationType.PLAYER_ACTION]
  rewards = arena.close()[0] if over else None
  return "\n".join(said).strip("\n"), over, float(rewards[0]) if rewards else None


def _package() -> ModuleType:
  """Returns TextArena, whose import takes a second."""
  try:
    import textarena
  except ImportError as error:
    raise SettingError(
      f"data.name='textarena': needs the package textarena ({error}); {INSTALL}"
    ) from error
  return textarena
