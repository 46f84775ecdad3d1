"""Scores groups by several weighted rewards.

A reward that fails does not end the run: the fault is recorded and a configured value is given. A
reward that fails on every completion, or raises SettingError, ends it. One that returns None or an
empty list gives the completion no reward; a completion without any reward does not count in the
mean of its group.

A reward that looks at a whole group is called once for it, and gives each of its completions a
number.

No reward can change what another one sees, or where its own value goes: examples and completions
are frozen (types.py), so that an attempt is a fault, and lists are made anew for each call.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.rewards.attempts import (
  FirstCalls,
  GroupReward,
  Outcome,
  Reward,
  Values,
  attempt,
  attempt_group,
  guarded,
  looks_at_group,
  setting_of,
)
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.types import Completion, Example

# Returns the score of a reward model for completion (p, g).
ModelReward = Callable[[int, int, Completion], float | Values | None]
# Places and values of rewards and of components, see `given_only`.
Share = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list["Fault"]]

RIGHT = 1.0  # smallest value of a right completion, by the reward that judges


class Fault(NamedTuple):
  """A reward that raised an exception, was late, or did not return a finite reward."""

  prompt: int  # index in P
  sample: int  # index in G
  name: str  # of the reward
  message: str


class Scores(NamedTuple):
  """Rewards of a batch, or of a process's share of it, as numpy arrays for `Rollouts`."""

  rewards: np.ndarray  # [P, G, L] float32, the weighted sum of all rewards given at a token
  given: np.ndarray  # [P, G, L] bool, where a reward was given
  # [P, G, N] float32, each reward alone, unweighted, and averaged if it has several values. NaN if
  # it gave this completion no reward, 0 for a prompt that only fills the batch.
  components: np.ndarray
  faults: list[Fault]


def score(
  rewards: Sequence[tuple[str, Reward | GroupReward, float]],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  max_length: int,
  on_error: float = 0.0,
  deadline: float = 0.0,
  models: Sequence[tuple[str, ModelReward, float]] = (),
  groups: Sequence[Sequence[Completion | None]] | None = None,
  known: Mapping[str, Sequence[Sequence[Outcome]]] | None = None,
) -> Scores:
  """Computes every reward of every completion; call `check_some_worked` after a whole batch.

  Args:
    rewards: N of (name, function, weight).
    examples: P examples; None marks a prompt that only fills the batch, without rewards.
    completions: G completions of each of the P prompts; None: another process scores it.
    max_length: L.
    on_error: the value, before its weight, of a reward that failed; it is given on the last token.
    deadline: seconds that a reward may take for one completion or one group; 0: any.
    models: further rewards, the scores of reward models.
    groups: `completions` with those that other processes score, for rewards that look at a group;
      None: there are none.
    known: by the name of a reward, what it gave each completion, `[P][G]`; it is not called again.

  Raises:
    guard.Stopped: a signal came while a reward ran.
  """
  shape = (len(examples), len(completions[0]) if completions else 0, max_length)
  sums = np.zeros(shape, np.float64)
  _, given, components, faults = nothing(shape, len(rewards) + len(models))
  known, first = known or {}, FirstCalls()
  together: dict[str, Any] = {
    name: function
    for name, function, _ in rewards
    if name not in known and looks_at_group(function)
  }
  with Guard(deadline) as guard:
    for p, (example, group) in enumerate(zip(examples, completions, strict=True)):
      if example is None or not any(completion and completion.tokens for completion in group):
        continue
      others = (groups or completions)[p]
      outcomes = {name: known[name][p] for name in known} | {
        name: first.note(name, attempt_group(guard, function, example, others), "groups")
        for name, function in together.items()
      }
      for g, completion in enumerate(group):
        if completion is None or not completion.tokens:
          continue
        last = len(completion.tokens) - 1
        by_models = [
          (name, functools.partial(_at_place, function, p, g), weight)
          for name, function, weight in models
        ]
        components_of: list[tuple[str, Any, float]] = [*rewards, *by_models]
        for n, (name, function, weight) in enumerate(components_of):
          if name in outcomes:
            values, message = outcomes[name][g]
          else:
            values, message = attempt(guard, function, example, completion)
            first.note(name, [(values, message)])
          if message:
            faults.append(Fault(p, g, name, message))
            values = [(last, float(on_error))]
          for token, value in values:
            sums[p, g, token] += weight * value
            given[p, g, token] |= weight != 0  # nothing is learned from a reward of weight 0
          mean = sum(value for _, value in values) / len(values) if values else np.nan
          components[p, g, n] = mean
  return Scores(sums.astype(np.float32), given, components, faults)


def _at_place(
  function: ModelReward, p: int, g: int, example: Example, completion: Completion
) -> float | Values | None:
  del example
  return function(p, g, completion)


def check_some_worked(faults: Sequence[Fault], scored: int) -> None:
  """Refuses rewards that failed on all of the `scored` completions of a batch."""
  failed = collections.Counter(fault.name for fault in faults)
  for fault in faults:
    if failed[fault.name] == scored:
      setting = setting_of(fault.name)
      raise SettingError(
        f"{setting}: {fault.name!r} failed on all {scored} completions of a step, first: "
        f"{fault.message}; correct the function, or remove it from {setting}"
      )


def given_only(scores: Scores) -> Share:
  """Returns the rewards given and their places, which are small, and the faults, for `join`."""
  where, nonzero = np.nonzero(scores.given), np.nonzero(scores.components)
  return (
    np.asarray(where, np.int32),
    scores.rewards[where],
    np.asarray(nonzero, np.int32),
    scores.components[nonzero],
    scores.faults,
  )


def join(shares: Sequence[Share], shape: tuple[int, int, int], rewards: int) -> Scores:
  """Returns the scores of a whole batch.

  Args:
    shares: `given_only` of each process.
    shape: P, G and L.
    rewards: N, the number of rewards.
  """
  whole = nothing(shape, rewards)
  for where, values, nonzero, components, faults in shares:
    whole.rewards[tuple(where)], whole.given[tuple(where)] = values, True
    whole.components[tuple(nonzero)] = components
    whole.faults.extend(faults)
  whole.faults.sort(key=lambda fault: (fault.prompt, fault.sample))
  return whole


def nothing(shape: tuple[int, int, int], rewards: int) -> Scores:
  """Returns scores of [P, G, L] = `shape` and N = `rewards` in which no reward was given."""
  sums, given = np.zeros(shape, np.float32), np.zeros(shape, bool)
  return Scores(sums, given, np.zeros((*shape[:2], rewards), np.float32), [])


def ahead(
  functions: Sequence[Callable],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  deadline: float = 0.0,
) -> None:
  """Calls each `score_ahead` with the pairs of examples and completions that are to be scored.

  A process of several may have none of a batch; then none is called.

  Args:
    functions: the functions to call.
    examples, completions: the batch, as for `score`.
    deadline: seconds for one completion; a call has as many of them as there are pairs.

  Raises:
    guard.Stopped: a signal came meanwhile.
  """
  pairs = [
    (e, c)
    for e, group in zip(examples, completions, strict=True)
    for c in group
    if e and c and c.tokens
  ]
  with Guard(deadline * max(1, len(pairs))) as call:
    for function in functions if pairs else ():
      _, message = guarded(call, function, list(pairs))
      if message:
        # Its arguments may be bound.
        where = getattr(getattr(function, "func", function), "__module__", "")
        raise SettingError(
          f"rewards.functions, eval.reward: score_ahead of {where} failed on {len(pairs)} "
          f"completions, with rewards.deadline={deadline:g} s for each: {message}; mend it, or "
          "leave it out: rewards work without it, too"
        )
