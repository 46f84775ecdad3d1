"""Games are played to their end: by hand, and by a player that halves what is left."""

import pytest

from grpo_jax.environments import base, guess
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Turn


def example(number: int) -> Example:
  return Example("Guess a number.", "", str(number), {})


def completion(text: str, ended: int = STOPPED) -> Completion:
  return Completion(text, [1], ended, [])


def game(number: int, turns: list[str], guesses: int = 5) -> tuple[list[Turn], Completion]:
  """Returns the answers to turns, which the last one ends, and the whole episode as it is scored."""
  state = base.begin(lambda e, key: guess.reset(e, key, guesses), example(number), 0)
  answers, text = [], ""
  for turn in turns:
    assert not answers or answers[-1].observation is not None, "the game is over"
    answers.append(base.answer(lambda s, c: guess.step(s, c, guesses), state, completion(turn)))
    state, observation, _ = answers[-1]
    text += turn if observation is None else f"{turn}\n{observation}"  # the last line is cut
  return answers, completion(text)


def said(answers: list[Turn]) -> list[tuple[str | None, float | None]]:
  return [(turn.observation, turn.reward) for turn in answers]


HIGHER, LOWER, WRONG = ("higher\n", None), ("lower\n", None), ("a number\n", None)
FOUND, LOST = (None, 1.0), (None, 0.0)


@pytest.mark.parametrize(
  ("number", "turns", "guesses", "want"),
  [
    (20, ["16", "24", "20"], 5, [HIGHER, LOWER, FOUND]),
    (20, ["20"], 5, [FOUND]),
    (20, ["20"], 1, [FOUND]),
    (20, ["19"], 1, [LOST]),
    (20, ["16", "24", "22"], 3, [HIGHER, LOWER, LOST]),
    (20, ["16", "24", "20"], 3, [HIGHER, LOWER, FOUND]),  # with the last guess
    (1, ["2", "0", "1"], 5, [LOWER, HIGHER, FOUND]),
    (20, [" 20 "], 5, [FOUND]),
    (20, ["020"], 5, [FOUND]),
    # what is no number is a guess as well
    (20, ["twenty", "", "20."], 3, [WRONG, WRONG, LOST]),
    (20, ["is it 20?", "20"], 2, [WRONG, FOUND]),
    (20, ["-20", "+20", "2 0", "20.0", "20\n21"], 6, [WRONG] * 5),
    (3, ["٣", "３", "³", "III"], 6, [WRONG] * 4),
    (20, ["9" * 9, "9" * 10, "9" * 5000], 5, [LOWER, WRONG, WRONG]),
  ],
)
def test_games(number, turns, guesses, want):
  answers, whole = game(number, turns, guesses)
  assert said(answers) == want
  if want[-1] in (FOUND, LOST):
    assert guess.solved(example(number), whole) == want[-1][1]


def test_the_state_counts_the_guesses_and_stays_at_the_end():
  answers, _ = game(20, ["16", "no", "20"], guesses=4)
  assert [turn.state["left"] for turn in answers] == [3, 2, 2]
  assert {turn.state["number"] for turn in answers} == {20}


def test_the_key_changes_nothing():
  assert guess.reset(example(7), 0, 5) == guess.reset(example(7), 99, 5) == {"number": 7, "left": 5}


def test_an_example_without_a_number_is_a_fault():
  with pytest.raises(ValueError, match="invalid literal"):
    guess.reset(Example("", "", "seven", {}), 0, 5)


def found_by_halving(number: int, numbers: int, guesses: int) -> float:
  """Returns the reward of a player that guesses the middle of what is left."""
  low, high, turns = 1, numbers, []
  while True:
    turns.append(str((low + high) // 2))
    answers, whole = game(number, turns, guesses)
    _, observation, reward = answers[-1]
    if observation is None:
      assert guess.solved(example(number), whole) == reward
      return reward
    low = low if observation == "lower\n" else int(turns[-1]) + 1
    high = high if observation == "higher\n" else int(turns[-1]) - 1


@pytest.mark.parametrize("numbers", [31, 15, 20, 1])
@pytest.mark.parametrize("guesses", [1, 2, 3, 4, 5])
def test_halving_finds_as_many_as_can_be_found(numbers, guesses):
  """All of 31 with five guesses, and with k guesses 2^k - 1 of any n."""
  found = sum(found_by_halving(n, numbers, guesses) for n in range(1, numbers + 1))
  assert found == min(numbers, 2**guesses - 1)
  assert guess.optimum(numbers, guesses) == found / numbers


def test_the_optimum_is_a_share():
  assert guess.optimum(31, 5) == 1.0 == guess.optimum(31, 9)
  assert guess.optimum(31, 4) == 15 / 31 and guess.optimum(100, 1) == 0.01
  assert guess.optimum(10, 0) == 0.0


@pytest.mark.parametrize(
  ("text", "want"),
  [
    ("20", 1.0),
    ("16\nhigher\n20", 1.0),
    ("16\nhigher\n21", 0.0),
    ("20\nlower\n16", 0.0),
    ("16\nhigher\n", 0.0),  # there was no room for a guess
    ("16\nhigher", 0.0),
    ("", 0.0),
    ("16\nhigher\n20 or so", 0.0),
    ("16\nhigher\n" + "20" * 5000, 0.0),
  ],
)
def test_an_episode_is_solved_if_its_last_line_is_the_number(text, want):
  assert guess.solved(example(20), completion(text)) == want
  assert guess.solved(example(20), completion(text, TRUNCATED)) == 0.0


@pytest.mark.parametrize(("reward", "want"), [(1.0, 1.0), (0.73, 1.0), (0.0, 0.0)])
def test_an_episode_that_was_judged_is_solved_as_it_was_judged(reward, want):
  """Some chat templates write no line of its own before a turn, and a discount makes less of 1."""
  whole = completion("16 [INST] higher [/INST] 20")._replace(reward=reward)
  assert guess.solved(example(20), whole) == want


def test_a_guess_that_was_cut_off_is_none():
  """Takes 7 for the beginning of 72."""
  state = guess.reset(example(7), 0, 2)
  turn = guess.step(state, completion("7", TRUNCATED), 2)
  assert (turn.observation, turn.reward) == WRONG and turn.state["left"] == 1


def test_without_a_guess_left_the_game_is_over():
  for guesses in (0, -3, 1):
    turn = guess.step(guess.reset(example(7), 0, guesses), completion("8"), guesses)
    assert (turn.observation, turn.reward) == LOST
