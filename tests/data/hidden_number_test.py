"""Replays the games of hidden_number: environments/guess.py would have answered them so."""

import collections
import re

import pytest

from grpo_jax.data import hidden_number
from grpo_jax.environments import guess
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults, registry
from grpo_jax.types import STOPPED, Completion, Example


def games(split: str = "train", **changes: int) -> hidden_number.HiddenNumbers:
  section = hidden_number.settings()
  section.update(changes)
  return hidden_number.source(split, "", section)


def replay(example: Example) -> list[int]:
  """Returns the guesses of a game, all of whose other lines are the environment's."""
  lines = example.solution.split("\n")
  guesses = lines[::2]
  state, text = guess.reset(example, 0, len(guesses)), ""
  for line in guesses:
    answer = guess.step(state, Completion(line, [1], STOPPED, []), len(guesses))
    state, text = answer.state, text + line + "\n" + (answer.observation or "")
  assert answer.observation is None and answer.reward == 1
  assert text == example.solution + "\n"
  return list(map(int, guesses))


@pytest.mark.parametrize(
  ("split", "largest"), [("train", 31), ("test", 31), ("train", 2), ("train", 1000)]
)
def test_games_are_legal_and_end_when_the_number_is_found(split, largest):
  """Each guess is one of the numbers that are still possible."""
  source = games(split, largest=largest)
  for index in range(min(500, len(source))):
    example = source[index]
    assert example.question == f"Guess a number from 1 to {largest}."
    assert example.answer == str(1 + index % largest) and example.meta == {"index": index}
    possible = range(1, largest + 1)
    for number in replay(example):
      assert number in possible
      low, high = possible[0], possible[-1]
      up = number < int(example.answer)
      possible = range(number + 1, high + 1) if up else range(low, number)
    assert guess.solved(example, Completion(example.solution, [1], STOPPED, [])) == 1


def test_the_player_guesses_all_that_is_possible_and_does_not_halve():
  first = collections.Counter(replay(games()[index])[0] for index in range(31 * 100))
  assert set(first) == set(range(1, 32))
  assert max(first.values()) < 2 * 100 and min(first.values()) > 100 / 2
  lengths = [len(replay(games("test")[index])) for index in range(31)]
  assert max(lengths) > 5  # it needs more guesses than halving does


def test_both_splits_have_every_number():
  train, test = games(games=3), games("test", games=3)
  assert (len(train), len(test)) == (93, 31)
  assert collections.Counter(e.answer for e in train) == {str(n): 3 for n in range(1, 32)}
  assert [e.answer for e in test] == [str(n) for n in range(1, 32)]
  of_one = {train[30 + 31 * k].solution for k in range(3)} | {test[30].solution}
  assert len(of_one) == 4  # four different games


def test_games_follow_from_split_seed_and_index():
  assert games()[40] == games()[40]
  assert games()[40].solution.split("\n")[-1] == "10"
  several = [
    [source[i].solution for i in range(31)] for source in (games(), games(seed=1), games("test"))
  ]
  assert several[0] != several[1] != several[2] != several[0]
  for index in (-1, 31_000):
    with pytest.raises(IndexError, match=f"game {index} of 31000"):
      games()[index]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"largest": 1}, "data.hidden_number.largest=1: use a whole number from 2 to 1000000"),
    ({"largest": 10**7}, "data.hidden_number.largest=10000000: use"),
    ({"games": 0}, "data.hidden_number.games=0: use a whole number from 1 to 1000000"),
    ({"seed": -1}, "data.hidden_number.seed=-1: use a whole number"),
    ({"largest": 2.5}, "data.hidden_number.largest=2.5: use"),
    ({"largest": True}, "data.hidden_number.largest=True: use"),
    ({"seed": "0"}, "data.hidden_number.seed='0': use"),
  ],
)
def test_settings_that_are_refused(changes, message):
  section = hidden_number.settings()
  with section.ignore_type():
    section.update(changes)
  with pytest.raises(SettingError, match=f"^{re.escape(message)}") as error:
    hidden_number.source("train", "", section)
  assert "\n" not in str(error.value)


def test_a_path_and_another_split_are_refused():
  section = hidden_number.settings()
  with pytest.raises(SettingError, match="^data.path='games.jsonl': hidden_number reads no files"):
    hidden_number.source("train", "games.jsonl", section)
  with pytest.raises(SettingError, match="^data split 'dev': hidden_number has test, train$"):
    hidden_number.source("dev", "", section)


def test_a_config_opens_it_by_name():
  c = defaults.get_config()
  c.data.name = "hidden_number"
  (train,), test = registry.train_data(c.data), registry.test_data(c.data)
  assert (len(train.open()), len(test.open())) == (31_000, 31)
  with c.ignore_type():
    c.data.hidden_number.largest = "many"
  with pytest.raises(SettingError, match="^data.hidden_number.largest='many': use a whole number"):
    registry.train_data(c.data)
