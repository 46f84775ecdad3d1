"""Calls an environment and checks what it returns; a fault ends the episode, not the run."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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


def first_state(example: Example, key: int) -> Json:
  """Returns the first state of an environment without a `reset`: the example."""
  del key
  return {**example._asdict(), "meta": _plain(example.meta)}


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
  if turn.observation is not None:
    _check_observation(turn.observation)
  return Turn(_as_json(turn.state), turn.observation, _as_reward(turn.reward))


def _check_observation(observation: object) -> None:
  """Refuses what the policy could not read."""
  if not isinstance(observation, str):
    raise TypeError(f"returned the observation {observation!r:.80}, which is no text")
  if not observation:
    raise ValueError("returned an empty observation; use None to end the episode")
  if len(observation) > LONGEST:
    raise ValueError(f"returned an observation of more than {LONGEST:,} characters")
  try:
    observation.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f"returned the observation {observation!a:.80}: {error}") from error


def _plain(value: object) -> Any:
  """Returns a value of `meta` as JSON; an object of another kind becomes its text."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, dict):
    return {str(key): _plain(entry) for key, entry in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(entry) for entry in value]
  return value if value is None or isinstance(value, str | int | float) else str(value)


def _as_json(state: object) -> Json:
  """Returns a copy of a state."""
  try:
    text = json.dumps(state)
  except (TypeError, ValueError, RecursionError) as error:
    raise TypeError(f"returned a state that is no JSON: {error}") from error
  if len(text) > LONGEST:
    raise ValueError(f"returned a state of more than {LONGEST:,} characters of JSON")
  return json.loads(text)


def _as_reward(reward: object) -> float | None:
  """Returns a reward as a float; None: there is none."""
  if reward is None:
    return None
  if isinstance(reward, str | bytes | bytearray):
    raise TypeError(f"returned the reward {reward!r:.80}, which is no number")
  try:
    value = float(reward)  # type: ignore[arg-type]  # whatever a user returned
  except OverflowError:  # an integer of hundreds of digits
    value = float("inf")
  except (TypeError, ValueError) as error:
    raise TypeError(f"returned the reward {reward!r:.80}, which is no number") from error
  if not abs(value) <= LARGEST:
    raise ValueError(f"returned the reward {reward!r:.80}, which is no finite number")
  return value
