"""Games of TextArena are played to their end, in this process and in the workers of a run."""

import little_arena
import pytest

from grpo_jax.data import textarena as data
from grpo_jax.environments import base, textarena
from grpo_jax.errors import SettingError
from grpo_jax.sandbox import worker
from grpo_jax.setup import environment_worker
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Turn


def completion(text: str) -> Completion:
  return Completion(text, [1], STOPPED, [])


def question(game: str, index: int = 0, **settings: object) -> Example:
  section = data.settings()
  section.game = game
  section.settings.update(settings)
  return data.source("train", "", section)[index]


def episode(example: Example, actions: list[str]) -> tuple[list[Turn], Completion]:
  """Returns the answers to actions, and the whole episode as it is scored."""
  state = base.begin(textarena.reset, example, 0)
  answers: list[Turn] = []
  for action in actions:
    assert not answers or answers[-1].observation is not None, "the game is over"
    answers.append(base.answer(textarena.step, state, completion(action)))
    state = answers[-1].state
  return answers, completion("".join(actions))._replace(reward=answers[-1].reward)


@pytest.fixture
def arena(monkeypatch):
  little_arena.install(monkeypatch)


def test_a_turn_is_answered_on_lines_of_its_own_and_the_last_one_has_the_reward(arena):
  answers, _ = episode(question("Coin-v0"), ["?", "?", "?"])
  assert [(t.observation, t.reward) for t in answers] == [
    ("\nWrong.\nNext?\n", None),
    ("\nWrong.\nNext?\n", None),
    (None, 0.0),
  ]


def test_the_state_is_the_seed_with_the_actions(arena):
  example = question("Coin-v0", index=4, coins=2)
  first = base.begin(textarena.reset, example, 77)
  assert first == {"game": "Coin-v0", "settings": {"coins": 2}, "seed": 9, "actions": []}
  answers, _ = episode(example, ["?", "heads"])
  assert [t.state["actions"] for t in answers] == [["?"], ["?", "heads"]]
  assert first["actions"] == []


def test_the_game_is_the_question_s_whatever_the_key(arena):
  example = question("Coin-v0", index=3)
  assert textarena.reset(example, 0) == textarena.reset(example, 5)


def test_a_turn_that_is_answered_twice_has_the_same_answer(arena):
  state = textarena.reset(question("Coin-v0"), 0)
  assert textarena.step(state, completion("heads")) == textarena.step(state, completion("heads"))


def test_a_question_of_another_data_set_is_a_fault():
  with pytest.raises(SettingError, match="^environment.name='textarena': plays the questions of d"):
    textarena.reset(Example("Which?", "", "7", {"seed": 1}), 0)


def test_an_action_that_was_cut_off_is_played_as_an_empty_one(arena):
  """[1 may be the beginning of [12]."""
  whole = completion("heads")
  state = textarena.reset(question("Coin-v0", coins=1), 0)
  cut_off = textarena.step(state, whole._replace(ended=TRUNCATED))
  assert cut_off == textarena.step(state, completion("")) and cut_off.state["actions"] == [""]
  assert (textarena.step(state, whole).reward, cut_off.reward) == (1.0, 0.0)


def test_the_outcome_of_an_episode_is_the_reward_of_its_last_turn(arena):
  example = question("Coin-v0")
  rewards = set()
  for actions in (["heads"] * 3, ["tails"] * 3, ["?"] * 3, ["heads", "", "tails"]):
    answers, whole = episode(example, actions)
    assert textarena.outcome(example, whole) == answers[-1].reward
    rewards.add(answers[-1].reward)
  assert len(rewards) > 2


def test_an_episode_that_ended_before_its_game_has_the_outcome_0(arena):
  _, whole = episode(question("Coin-v0"), ["?", "?"])
  assert textarena.outcome(question("Coin-v0"), whole) == 0.0
  # the worked solution, which is scored at the start, was not played
  assert textarena.outcome(question("Coin-v0"), completion("")) == 0.0


# -- with the package


def needs_package():
  pytest.importorskip("textarena", reason=data.INSTALL)


HANOI = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]


def test_the_tower_of_hanoi_is_solved():
  needs_package()
  example = question("TowerOfHanoi-v0")
  answers, whole = episode(example, HANOI)
  assert answers[0].observation == (
    "\nYou moved disk 1 from A to C.\nCurrent Board: \nA: [3, 2]\nB: []\nC: [1]\n.\n"
  )
  assert [t.reward for t in answers] == [None] * 6 + [1.0]
  assert textarena.outcome(example, whole) == 1.0


def test_a_number_is_found_by_halving():
  """Adds, as the game does, the brackets that an action lacks."""
  needs_package()
  example, actions = question("GuessTheNumber-v0", max_number=15), []
  low, high = 1, 15
  while True:
    actions.append(str((low + high) // 2))
    answers, whole = episode(example, actions)
    if (said := answers[-1].observation) is None:
      break
    assert said in ("\nThe target number is higher.\n", "\nThe target number is lower.\n")
    low = int(actions[-1]) + 1 if "higher" in said else low
    high = int(actions[-1]) - 1 if "lower" in said else high
  assert len(actions) <= 4 and answers[-1].reward == 1.0 == textarena.outcome(example, whole)


def test_two_invalid_actions_in_a_row_end_a_game():
  needs_package()
  answers, whole = episode(question("Mastermind-v0"), ["[1 2 3 4]", "no", "[1 2 3 4]"])
  assert answers[1].observation.startswith("\nYou attempted an invalid move. Reason: ")
  assert answers[2].observation is None and 0 <= answers[2].reward < 1
  assert textarena.outcome(question("Mastermind-v0"), whole) == answers[2].reward


@pytest.mark.parametrize("name", ["textarena", textarena.__file__])
def test_workers_answer_as_this_process_does(name):
  """Finds the package of the same name from a file that is run by its path."""
  needs_package()
  example = question("Minesweeper-v0", index=2)
  want, _ = episode(example, ["[3 3]", "[0 0]"])
  described = environment_worker.describe(name, {}, 60.0)
  ask = worker.shared(environment_worker.__name__, described, 2).ask_all
  replies = ask([base.first_request(example, 0, completion("[3 3]"))] * 2)
  assert replies == [{"turn": list(want[0])}] * 2
  (reply,) = ask([base.next_request(replies[0]["turn"][0], completion("[0 0]"))])
  assert reply == {"turn": list(want[1])}
