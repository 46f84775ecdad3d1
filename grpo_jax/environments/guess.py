"""Plays a game: each turn is a guess of a number, which is answered by `higher` or `lower`.

    c.environment.name = "guess"
    c.environment.arguments = (("guesses", 5),)
    c.data.name = "hidden_number"     # questions with a number in `answer`
    c.sampler.stop = ("\\n",)          # a guess is a line
    c.rewards.functions = ()
    c.eval.reward = "grpo_jax.environments.guess:solved"

The right guess has the reward 1 and ends the episode. After the last one it is over, with
the reward 0. Of n numbers, k guesses can find 2^k - 1 at most, by halving what is left: `optimum`.
"""

from grpo_jax.aliases import Json
from grpo_jax.types import STOPPED, Completion, Example, Turn

LONGEST = 9  # digits of a guess


def reset(example: Example, key: int, guesses: int) -> Json:
  """Returns the number that is to be guessed, and how many guesses are left."""
  del key
  return {"number": int(example.answer), "left": guesses}


def step(state: Json, completion: Completion, guesses: int) -> Turn:
  """Returns whether the number is higher or lower than the guess, until it is right."""
  del guesses
  number, left = guess(completion.text, completion.ended), state["left"] - 1
  if number == state["number"]:
    return Turn(state, None, 1.0)
  if left < 1:
    return Turn(state, None, 0.0)
  after = state | {"left": left}
  if number is None:
    return Turn(after, "a number\n")
  return Turn(after, "higher\n" if number < state["number"] else "lower\n")


def guess(text: str, ended: int) -> int | None:
  """Returns the number that a turn consists of, or None; 7 may be the beginning of 72."""
  text = text.strip()
  is_number = text.isdecimal() and text.isascii() and len(text) <= LONGEST
  return int(text) if is_number and ended == STOPPED else None


def solved(example: Example, completion: Completion) -> float:
  """Returns 1 for an episode that ends with the number, otherwise 0.

  A text that no environment has judged must have the number as its last line.
  """
  if completion.reward is not None:
    return float(completion.reward > 0)
  last = completion.text.split("\n")[-1]
  return float(guess(last, completion.ended) == int(example.answer))


def optimum(numbers: int, guesses: int) -> float:
  """Returns the largest share of `numbers` equally likely numbers that `guesses` can find."""
  return min(1.0, (2**guesses - 1) / numbers)
