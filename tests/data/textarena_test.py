"""Games of TextArena are the same each time; what cannot be played is refused in one line.

Most tests play a stand-in for the package. Those with the package need no network.
"""

import json
import random
import re
import sys

import little_arena
import pytest

from grpo_jax.data import textarena
from grpo_jax.errors import SettingError

OFFLINE = ("GuessTheNumber-v0", "Mastermind-v0", "TowerOfHanoi-v0", "Minesweeper-v0", "Sudoku-v0")


def games(split: str = "train", path: str = "", **changes: object) -> textarena.Games:
  section = textarena.settings()
  section.update({"game": "Coin-v0"} | changes)
  return textarena.source(split, path, section)


@pytest.fixture
def arena(monkeypatch):
  little_arena.install(monkeypatch)


def test_a_question_is_what_the_game_says_first(arena):
  example = games()[2]
  assert re.fullmatch(r"Guess 3 coins\.\nThe first lies on (wood|stone)\.", example.question)
  assert example.answer == example.solution == ""
  assert example.meta == {"game": "Coin-v0", "settings": {}, "seed": 5}


def test_the_settings_of_a_game_reach_it(arena):
  example = games(settings={"coins": 7})[0]
  assert example.question.startswith("Guess 7 coins.") and example.meta["settings"] == {"coins": 7}
  assert json.loads(json.dumps(example.meta)) == example.meta


def test_no_seed_is_in_two_splits(arena):
  seeds = {
    split: {example.meta["seed"] for example in games(split, games=50, seed=3)}
    for split in ("train", "test")
  }
  assert seeds == {"train": set(range(7, 107, 2)), "test": set(range(6, 106, 2))}


def test_games_are_the_same_each_time_and_differ_by_seed(arena):
  one, other = games(), games()
  assert [one[i] for i in (7, 3)] == [other[i] for i in (7, 3)]
  assert len({one[i].question for i in range(20)}) == 2
  assert len(one) == 1000 and one[999]
  for index in (1000, -1):
    with pytest.raises(IndexError):
      one[index]


def test_what_others_draw_at_random_is_not_changed(arena):
  """Games seed the generator that all of Python shares."""
  random.seed(11)
  want = [random.random() for _ in range(3)]
  random.seed(11)
  found = [random.random()]
  source = games()
  found.append(random.random())
  textarena.play(**source[0].meta, actions=["heads"])
  with pytest.raises(KeyError):
    textarena.play("None-v0", {}, 0, [])
  found.append(random.random())
  assert found == want


def test_a_game_is_played_from_its_beginning(arena):
  """Each call is told what the game said last, without the player's own words."""
  thrown = [
    "heads" if textarena.play("Coin-v0", {}, 5, [*["heads"] * k])[0] == "Right.\nNext?" else "tails"
    for k in (1, 2, 3)
  ]
  for k in (1, 2):
    assert textarena.play("Coin-v0", {}, 5, thrown[:k]) == ("Right.\nNext?", False, None)
  assert textarena.play("Coin-v0", {}, 5, thrown)[1:] == (True, 3.0)
  assert textarena.play("Coin-v0", {}, 5, [thrown[0], "?", "?"]) == ("Wrong.\nNext?", True, 1.0)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"game": "None-v0"}, "data.textarena.game='None-v0' with settings={}: TextArena cannot play"),
    ({"game": "Words-v0"}, "data.textarena.game='Words-v0' .* LookupError: Resource 'words' not"),
    ({"game": "Unseeded-v0"}, "data.textarena.game='Unseeded-v0': the game of a seed is another"),
    (
      {"settings": {"dice": 1}},
      "data.textarena.game='Coin-v0' with settings={'dice': 1}: .*'dice'",
    ),
    ({"games": 0}, "data.textarena.games=0: use a whole number from 1 to 1000000"),
    ({"seed": -1}, "data.textarena.seed=-1: use a whole number"),
    ({"split": "validation"}, "data split 'validation': textarena has test, train"),
    ({"path": "games"}, "data.path='games': textarena reads no files; leave it empty"),
  ],
)
def test_what_is_refused(arena, changes, message):
  with pytest.raises(SettingError, match=f"^{message}") as error:
    games(**changes)
  assert "\n" not in str(error.value)


def test_without_the_package_there_is_a_line_that_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "textarena", None)
  with pytest.raises(
    SettingError, match="^data.name='textarena': .*pip install textarena"
  ) as error:
    games()
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("game", OFFLINE)
def test_games_of_the_package_are_the_same_each_time(game):
  pytest.importorskip("textarena", reason=textarena.INSTALL)
  one, other = games(game=game), games(game=game)
  assert [one[i] for i in range(5)] == [other[i] for i in range(5)]
  actions = ["[3]", "[A C]", "[1 2 3 4]", "[2 2]"]
  for k in range(1, len(actions) + 1):
    played = textarena.play(**one[0].meta, actions=actions[:k])
    assert played == textarena.play(**one[0].meta, actions=actions[:k])
    if played[1]:
      break


@pytest.mark.parametrize(
  ("game", "reason"),
  [("Nonsense-v0", "not found in registry"), ("TicTacToe-v0", "players has to be 2, received 1")],
)
def test_games_that_the_package_does_not_have_for_one(game, reason):
  pytest.importorskip("textarena", reason=textarena.INSTALL)
  with pytest.raises(SettingError, match=f"^data.textarena.game='{game}' .*{reason}"):
    games(game=game)
