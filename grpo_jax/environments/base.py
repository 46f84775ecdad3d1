"""Calls an environment and checks what it returns, in the worker processes that have its file.

A request asks for the answer to one turn, and a reply is that answer; both are JSON. A fault ends
the episode, not the run.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError, SettingError
from grpo_jax.rewards.attempts import LARGEST, text_of
from grpo_jax.sandbox import serving
from grpo_jax.types import Completion, Example, Turn

# A run ends if workers give no answer to this many episodes, the first that they are asked about.
LOST_AT_FIRST = 5
LONGEST = 100_000  # characters of an observation, and of a state as JSON


class Failed(Exception):
  """Says that the environment failed in a turn of a sample, and how."""


class Functions(NamedTuple):
  """Functions of an environment's file, bound to its arguments."""

  reset: Callable[[Example, int], Json]
  step: Callable[[Json, Completion], Turn]


class Workers(Protocol):
  """Reply to requests while something else is done, see `sandbox.worker.Pool`."""

  answered: bool  # whether the environment has answered an episode, see `check_first`

  def submit(self, request: Json, /) -> Future[Json]:
    """Returns what will be the reply."""
    ...

  def drop(self, replies: Iterable[Future[Json]], /) -> None:
    """Gives replies up."""
    ...


class Environment(NamedTuple):
  """Answers turns, within the limits of its episodes."""

  workers: Workers  # reply to requests, see `respond`
  reply: Callable[[str, int], list[int]]  # (observation, last sampled token) -> ids to read
  turns: int  # most turns of an episode
  turn_length: int  # most tokens that are sampled in a turn; 0: as many as the completion may have
  judges: bool = False  # alone: nothing else rewards its episodes


def functions(code: Mapping[str, Any], arguments: Json) -> Functions:
  """Returns the functions among the names of a module, bound to keyword arguments.

  Raises:
    LookupError: there is no such function.
    TypeError, ValueError: they do not take the arguments.
  """
  step, reset = code.get("step"), code.get("reset")
  if not callable(step) or not (reset is None or callable(reset)):
    raise LookupError("has no function step(state, completion)")
  inspect.signature(step).bind("state", "completion", **arguments)
  if reset is None:
    return Functions(first_state, functools.partial(step, **arguments))
  inspect.signature(reset).bind("example", "key", **arguments)
  return Functions(functools.partial(reset, **arguments), functools.partial(step, **arguments))


def first_request(example: Example, key: int, completion: Completion) -> Json:
  """Returns the request to answer the first turn of an episode; `key` is its prompt's number."""
  shown = [*example[:3], _plain(example.meta)]
  return {"example": shown, "key": key, "completion": list(completion)}


def next_request(state: Json, completion: Completion) -> Json:
  """Returns the request to answer a later turn; `state` is that of the reply before."""
  return {"state": state, "completion": list(completion)}


def respond(functions: Functions, asked: Json) -> Json:
  """Returns the reply to a request: {"turn": [state, observation, reward]}, or {"error": why}.

  A worker that gives no reply tells that as {"error": why}, too, or {"refused": why}.
  """
  name = "reset"
  try:
    if "state" in asked:
      state = asked["state"]
    else:
      state = begin(functions.reset, Example(*asked["example"]), asked["key"])
    name = "step"
    return {"turn": list(answer(functions.step, state, Completion(*asked["completion"])))}
  except (Exception, SystemExit) as error:  # an environment may raise anything
    return {"error": f"{name}: {type(error).__name__}: {text_of(error)}"[:500]}


def check_first(workers: Workers, replies: Iterable[Json]) -> None:
  """Ends a run whose workers are late or end in each of the first episodes of a batch.

  Workers that have answered once are not checked again: training and evaluation share them.

  Args:
    workers: that reply.
    replies: to the first turns of the batch's episodes. They are read until one is an answer.

  Raises:
    SettingError: they are, or could not load the environment.
  """
  if workers.answered:
    return
  lost: list[str] = []
  for reply in map(serving.accepted, replies):
    if not _is_lost(reply):
      workers.answered = True
      return
    lost.append(reply["error"])
    if len(lost) == LOST_AT_FIRST:
      raise SettingError(
        f"environment.name: the environment {lost[0]} in the first turn of each of the first "
        f"{LOST_AT_FIRST} episodes; correct it, or use a larger rewards.deadline if it is slow"
      )


def _is_lost(reply: Json) -> bool:
  """Returns whether the worker itself, and not `respond`, says why there is no answer."""
  return "error" in reply and not reply["error"].startswith(("reset: ", "step: "))


def encoded(environment: Environment, observation: str, last: int) -> tuple[list[int], str]:
  """Returns an observation as tokens that follow the token `last`, or none and the reason why."""
  try:
    ids = environment.reply(observation, last)
  except DataError as error:  # there is no token for it, or the chat template refuses it
    return [], f"the observation {observation!r:.80}: {error}"
  return ids, "" if ids else f"the observation {observation!r:.80} has no token"


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
    raise TypeError(
      f"returned {turn!r:.60} ({type(turn).__name__}); use grpo_jax.types.Turn(state, observation, "
      "reward)"
    )
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
