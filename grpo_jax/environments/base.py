"""Calls an environment and checks what it returns; a fault ends the episode, not the run."""

import json
from collections.abc import Callable
from typing import NamedTuple

from grpo_jax.aliases import Json
from grpo_jax.types import Completion, Example, Turn

LARGEST = 1e30  # largest size of a reward, as of rewards/combine.py
LONGEST = 100_000  # characters of an observation, and of a state as JSON


class Failed(Exception):
  """The environment failed in a turn of a sample; the message says how."""


class Environment(NamedTuple):
  """Functions of an environment, bound to its arguments, and the limits of its episodes."""

  reset: Callable[[Example, int], Json]
  step: Callable[[Json, Completion], Turn]
  reply: Callable[[str, int], list[int]]  # (observation, last sampled token) -> ids to read
  turns: int  # most turns of an episode
  turn_length: int  # most tokens that are sampled in a turn; 0: as many as the completion may have
  discount: float  # factor of the rewards of each later turn
  deadline: float  # seconds that a call may take


def first_state(example: Example) -> Json:
  """Returns the first state of an environment without a `reset`."""
  return {**example._asdict(), "meta": json.loads(json.dumps(example.meta, default=str))}


def begin(function: Callable[[Example, int], Json], example: Example, key: int) -> Json:
  """Returns the checked first state of an episode."""
  return _as_json(function(example, key))


def answer(
  function: Callable[[Json, Completion], Turn], state: Json, completion: Completion
) -> Turn:
  """Returns the checked answer to a turn; its reward is a float, its state a copy."""
  turn = function(state, completion)
  if not isinstance(turn, Turn):
    raise TypeError(f"returned {turn!r:.80}; use grpo_jax.types.Turn(state, observation, reward)")
  if turn.observation is not None and not isinstance(turn.observation, str):
    raise TypeError(f"returned the observation {turn.observation!r:.80}, which is no text")
  if turn.observation == "":
    raise ValueError("returned an empty observation; use None to end the episode")
  if turn.observation is not None and len(turn.observation) > LONGEST:
    raise ValueError(f"returned an observation of more than {LONGEST:,} characters")
  return Turn(_as_json(turn.state), turn.observation, _as_reward(turn.reward))


def _as_json(state: object) -> Json:
  """Returns a copy of a state."""
  try:
    text = json.dumps(state)
  except (TypeError, ValueError) as error:
    raise TypeError(f"returned a state that is no JSON: {error}") from error
  if len(text) > LONGEST:
    raise ValueError(f"returned a state of more than {LONGEST:,} characters of JSON")
  return json.loads(text)


def _as_reward(reward: object) -> float | None:
  """Returns a reward as a float; None: there is none."""
  if reward is None:
    return None
  if isinstance(reward, str | bytes):
    raise TypeError(f"returned the reward {reward!r:.80}, which is no number")
  try:
    value = float(reward)  # type: ignore[arg-type]  # whatever a user returned
  except (TypeError, ValueError, OverflowError) as error:
    raise TypeError(f"returned the reward {reward!r:.80}, which is no number") from error
  if not abs(value) <= LARGEST:
    raise ValueError(f"returned the reward {reward!r:.80}, which is no finite number")
  return value
