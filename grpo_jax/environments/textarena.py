"""Plays a game of TextArena: each turn is an action, and the game's next words are its answer.

    c.data.name = "textarena"         # names the game and its settings, and asks the question
    c.environment.name = "textarena"
    c.environment.turns = 20          # as many as the game has, and those for invalid actions
    c.sampler.stop = ("\\n",)          # an action is a line
    c.rewards.functions = ()
    c.eval.reward = "grpo_jax.environments.textarena:outcome"

A game of TextArena is an object that cannot be written as JSON. So the state holds the game's seed
and the actions so far, and each turn plays them again. The last turn has the game's reward: 1 for a
win, and in most games less for a part of it. A turn that was cut off is played as an empty action,
which is invalid.
"""

from grpo_jax.aliases import Json
from grpo_jax.data import textarena
from grpo_jax.errors import SettingError
from grpo_jax.types import STOPPED, Completion, Example, Turn


def reset(example: Example, key: int) -> Json:
  """Returns the game of the question before its first action; the seed is the question's."""
  del key
  if not {"game", "settings", "seed"} <= example.meta.keys():
    raise SettingError("environment.name='textarena': plays the questions of data.name='textarena'")
  return {name: example.meta[name] for name in ("game", "settings", "seed")} | {"actions": []}


def step(state: Json, completion: Completion) -> Turn:
  """Returns what the game says to an action, on lines of its own; a cut-off one counts as empty."""
  action = completion.text if completion.ended == STOPPED else ""
  after = state | {"actions": [*state["actions"], action]}
  said, over, reward = textarena.play(**after)
  return Turn(after, None if over else f"\n{said}\n", reward)


def outcome(example: Example, completion: Completion) -> float:
  """Returns the game's reward for a whole episode; one that ended before its game has 0."""
  del example
  return completion.reward or 0.0
