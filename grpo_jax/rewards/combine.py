"""Scores groups by several weighted rewards.

A reward that fails stops nothing: the fault is recorded and a configured value is given. One that fails on every
completion, or raises SettingError, ends the run. One that returns None, or an empty list, gives the completion no
reward; what no reward was given to takes no part in the mean of its group (TRL leaves such a reward out, too, but
counts a completion without any as 0).
"""

import collections
import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.guard import LATE, Guard, Late
from grpo_jax.types import Completion, Example

# Returns a value for the whole completion, which is given on its last token, or [(token index, value), ...], or None.
Reward = Callable[[Example, Completion], float | list[tuple[int, float]] | None]

LARGEST = 1e30  # the largest size of a reward: sums of weighted rewards stay finite in float32


LATE_AT_FIRST = 5  # a reward that is late on so many completions, the first of a batch, ends the run


class Fault(NamedTuple):
  """A reward that raised an exception, was late, or returned what is no finite reward."""

  prompt: int  # index in P
  sample: int  # index in G
  name: str  # of the reward
  message: str


class Scores(NamedTuple):
  """The rewards of a batch, or of one process's share of it, as numpy arrays that go into `Rollouts`."""

  rewards: np.ndarray  # [P, G, L] float32, the weighted sum of all rewards given at a token
  given: np.ndarray  # [P, G, L] bool, where a reward was given
  # [P, G, N] float32, each reward alone, unweighted; the mean over steps where it has several values. NaN where it gave
  # this completion no reward (0 would be a reward), 0 for a prompt that only fills the batch.
  components: np.ndarray
  faults: list[Fault]


def score(
  rewards: Sequence[tuple[str, Reward, float]],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  max_length: int,
  on_error: float = 0.0,
  deadline: float = 0.0,
  models: Sequence[tuple[str, Callable, float]] = (),
) -> Scores:
  """Computes every reward of every completion. `check_some_worked` is to be called when all of a batch has been scored.

  Args:
    rewards: N of (name, function, weight).
    examples: P examples; None marks a prompt that only fills the batch and is given nothing.
    completions: G completions of each of the P prompts; None where another process scores it: it is given nothing.
    max_length: L.
    on_error: the value, before its weight, of a reward that failed; it is given on the last token.
    deadline: seconds after which a reward of one completion has failed; 0: none.
    models: more of them, whose functions are called with (p, g, completion): the scores of reward models.

  Raises:
    SettingError: a reward says that it cannot work as it is set, or is late on all of the first completions.
    guard.Stopped: a signal came while a reward ran.
  """
  shape = (len(examples), len(completions[0]) if completions else 0, max_length)
  sums = np.zeros(shape, np.float64)
  _, given, components, faults = nothing(shape, len(rewards) + len(models))
  asked, late = 0, collections.Counter()
  with Guard(deadline) as call:
    for p, (example, group) in enumerate(zip(examples, completions, strict=True)):
      for g, completion in enumerate(group):
        if example is None or completion is None or not completion.tokens:
          continue
        asked += 1
        last = len(completion.tokens) - 1
        judged = [(name, functools.partial(_at_place, of, p, g), weight) for name, of, weight in models]
        for n, (name, function, weight) in enumerate([*rewards, *judged]):
          values, message = attempt(call, function, example, completion)
          if message:
            faults.append(Fault(p, g, name, message))
            values = [(last, float(on_error))]
            late[name] += message.startswith(LATE)
            if late[name] == asked == LATE_AT_FIRST:
              raise SettingError(
                f"rewards.functions: {name!r} {message}, on each of the first {asked} completions; use a faster reward "
                "or a larger rewards.deadline"
              )
          for token, value in values:
            sums[p, g, token] += weight * value
            given[p, g, token] = True
          components[p, g, n] = sum(value for _, value in values) / len(values) if values else np.nan
  return Scores(sums.astype(np.float32), given, components, faults)


def _at_place(function: Callable, p: int, g: int, example: Example, completion: Completion) -> list[tuple[int, float]]:
  del example
  return function(p, g, completion)


def check_some_worked(faults: Sequence[Fault], asked: int) -> None:
  """Refuses rewards that failed on all completions of a batch, of which there are `asked`.

  Raises:
    SettingError: names the reward.
  """
  failed = collections.Counter(fault.name for fault in faults)
  for fault in faults:
    if failed[fault.name] == asked:
      raise SettingError(
        f"rewards.functions: {fault.name!r} failed on all {asked} completions of a step, first: {fault.message}; mend "
        "it, or leave it out"
      )


def given_only(scores: Scores) -> tuple[Any, ...]:
  """Returns what was given and where, which is small, to be put together by `join`; with the faults."""
  where, of = np.nonzero(scores.given), np.nonzero(scores.components)
  return np.int32(where), scores.rewards[where], np.int32(of), scores.components[of], scores.faults


def join(shares: Sequence[tuple[Any, ...]], shape: tuple[int, int, int], rewards: int) -> Scores:
  """Returns the scores of a whole batch.

  Args:
    shares: `given_only` of each process.
    shape: P, G and L.
    rewards: how many there are, N.
  """
  whole = nothing(shape, rewards)
  for where, values, of, components, faults in shares:
    whole.rewards[tuple(where)], whole.given[tuple(where)] = values, True
    whole.components[tuple(of)] = components
    whole.faults.extend(faults)
  whole.faults.sort(key=lambda fault: (fault.prompt, fault.sample))
  return whole


def nothing(shape: tuple[int, int, int], rewards: int) -> Scores:
  """Returns scores without any: no token of [P, G, L] = `shape` was given one of so many rewards."""
  return Scores(np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros((*shape[:2], rewards), np.float32), [])


def attempt(
  call: Guard, function: Reward, example: Example, completion: Completion
) -> tuple[list[tuple[int, float]], str]:
  """Returns what a reward gives a completion, [(token index, value), ...], and ""; or [] and what went wrong.

  Raises:
    SettingError: the reward says that it cannot work as it is set.
    guard.Stopped: a signal came meanwhile.
  """
  found, message = guarded(call, _values, function, example, completion)
  return found or [], message


def _values(function: Reward, example: Example, completion: Completion) -> list[tuple[int, float]]:
  """What a reward gives a completion, checked."""
  return _checked(function(example, completion), len(completion.tokens) - 1)


def guarded(call: Guard, function: Callable, *args: Any) -> tuple[Any, str]:
  """Returns what a user's function returns and "", or None and what went wrong; raises as `attempt` does."""
  try:
    return call(function, *args), ""
  except SettingError:
    raise
  except Late as error:
    return None, str(error)
  except Exception as error:  # a user's function: anything
    return None, f"{type(error).__name__}: {_text(error)}"[:500]


def ahead(
  functions: Sequence[Callable],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
) -> None:
  """Calls each `score_ahead` with the pairs of [P] examples and their [P][G] completions that are to be scored.

  Raises:
    guard.Stopped: a signal came meanwhile.
  """
  pairs = [(e, c) for e, group in zip(examples, completions, strict=True) for c in group if e and c and c.tokens]
  with Guard(0.0) as call:
    for function in functions:
      call(function, pairs)


def _text(error: Exception) -> str:
  """What an error says; "" where that cannot be made into text."""
  try:
    return str(error)
  except Exception:  # a user's class: anything
    return ""


def _checked(result, last: int) -> list[tuple[int, float]]:
  """What a reward returned as [(token index, value), ...]; empty where it gave no reward.

  Raises:
    TypeError: a value is no number.
    ValueError: a value is not finite, or its token is not one of the completion's.
  """
  if result is None:
    return []
  values = list(result) if isinstance(result, (list, tuple)) else [(last, result)]
  for token, value in values:
    if not isinstance(value, (numbers.Real, np.bool_)):
      raise TypeError(f"returned {value!r:.80}, which is no number")
    if not abs(value) <= LARGEST:
      raise ValueError(f"returned {value!r:.80}, which is no finite reward")
    if isinstance(token, bool) or not isinstance(token, numbers.Integral) or not 0 <= token <= last:
      raise ValueError(f"returned a reward for token {token!r:.80} of {last + 1}")
  return [(int(token), float(value)) for token, value in values]
