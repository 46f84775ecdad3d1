"""Scores groups by several weighted rewards.

A reward that fails does not end the run: the fault is recorded and a configured value is given. A
reward that fails on every completion, or raises SettingError, ends it. One that returns None or an
empty list gives the completion no reward; a completion without any reward does not count in the
mean of its group. (TRL leaves such a reward out, too, but counts a completion without any as 0.)

A reward that looks at a whole group is called once for it, and gives each of its completions a
number.

No reward can change what another one sees, or where its own value goes: examples and completions
are frozen (types.py), so that an attempt is a fault, and lists are made anew for each call.
"""

import collections
import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.sandbox.deadline import LATE, Guard, Late
from grpo_jax.types import Completion, Example

Values = list[tuple[int, float]]  # (token index, value) of a completion
# Returns a value for the whole completion, which is given on its last token, or values, or None.
Reward = Callable[[Example, Completion], float | Values | None]
# Takes all completions of an example and returns a value for each; recognized by the name of its
# second parameter.
GroupReward = Callable[[Example, list[Completion]], Sequence[float]]
# Returns the score of a reward model for completion (p, g).
ModelReward = Callable[[int, int, Completion], float | Values | None]
GROUP_PARAMETER = "completions"
Outcome = tuple[Values, str]  # the values that a completion got, and an error message or ""
Result = TypeVar("Result")
# Places and values of rewards and of components, see `given_only`.
Share = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list["Fault"]]

LARGEST = 1e30  # largest size of a reward, so that weighted sums stay finite in float32
ENVIRONMENT = "environment"  # name of the rewards of an environment's turns
RIGHT = 1.0  # smallest value of a right completion, by the reward that judges
LATE_AT_FIRST = 5  # a reward that is late in this many calls, the first of a batch, ends the run


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


def looks_at_group(function: Callable) -> bool:
  """Returns whether a reward takes a group: whether its second parameter is `completions`."""
  try:
    second = [*inspect.signature(function).parameters.values()][1:2]
  except (TypeError, ValueError):  # written in C, without a signature
    return False
  return [p.name for p in second if p.kind is not p.VAR_POSITIONAL] == [GROUP_PARAMETER]


def score(
  rewards: Sequence[tuple[str, Reward | GroupReward, float]],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  max_length: int,
  on_error: float = 0.0,
  deadline: float = 0.0,
  models: Sequence[tuple[str, ModelReward, float]] = (),
  groups: Sequence[Sequence[Completion | None]] | None = None,
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

  Raises:
    guard.Stopped: a signal came while a reward ran.
  """
  shape = (len(examples), len(completions[0]) if completions else 0, max_length)
  sums = np.zeros(shape, np.float64)
  _, given, components, faults = nothing(shape, len(rewards) + len(models))
  together = {name: function for name, function, _ in rewards if looks_at_group(function)}
  with Guard(deadline) as guard:
    call = functools.partial(_in_time, guard, collections.Counter(), collections.Counter())
    for p, (example, group) in enumerate(zip(examples, completions, strict=True)):
      if example is None or not any(completion and completion.tokens for completion in group):
        continue
      others = (groups or completions)[p]
      group_outcomes = {
        name: call(name, attempt_group, function, example, others)
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
        for n, (name, function, weight) in enumerate([*rewards, *by_models]):
          if name in together:
            values, message = group_outcomes[name][g]
          else:
            ((values, message),) = call(name, _attempt_one, function, example, completion)
          if message:
            faults.append(Fault(p, g, name, message))
            values = [(last, float(on_error))]
          for token, value in values:
            sums[p, g, token] += weight * value
            given[p, g, token] |= weight != 0  # nothing is learned from a reward of weight 0
          mean = sum(value for _, value in values) / len(values) if values else np.nan
          components[p, g, n] = mean
  return Scores(sums.astype(np.float32), given, components, faults)


def _in_time(
  guard: Guard,
  calls: collections.Counter[str],
  late: collections.Counter[str],
  name: str,
  attempted: Callable[..., list[Outcome]],
  *args: object,
) -> list[Outcome]:
  """Returns the outcomes of one call of a reward, which must not be late in all its first calls."""
  outcomes = attempted(guard, *args)
  message = next((message for _, message in outcomes if message), "")
  calls[name] += 1
  late[name] += message.startswith(LATE)
  if late[name] == calls[name] == LATE_AT_FIRST:
    what = "groups" if attempted is attempt_group else "completions"
    raise SettingError(
      f"rewards.functions: {name!r} {message}, on each of the first {LATE_AT_FIRST} {what}; use a "
      "faster reward or a larger rewards.deadline"
    )
  return outcomes


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
      setting = "environment.name" if fault.name == ENVIRONMENT else "rewards.functions"
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


def attempt(call: Guard, function: Reward, example: Example, completion: Completion) -> Outcome:
  """Returns the values that a reward gives a completion, or none and an error message."""
  values, message = guarded(call, _values, function, example, completion)
  return values or [], message


def _attempt_one(
  call: Guard, function: Reward, example: Example, completion: Completion
) -> list[Outcome]:
  return [attempt(call, function, example, completion)]


def attempt_group(
  call: Guard, function: GroupReward, example: Example, group: Sequence[Completion | None]
) -> list[Outcome]:
  """Returns the outcome of each completion of a group as `attempt` does; an error is that of all.

  The reward does not see places of the group without a completion, and gives them nothing.
  """
  real = [completion for completion in group if completion and completion.tokens]
  result, message = guarded(call, _group_values, function, example, real)
  values = iter(result or [[]] * len(real))
  return [
    (next(values), message) if completion and completion.tokens else ([], "")
    for completion in group
  ]


def _group_values(function: GroupReward, example: Example, group: list[Completion]) -> list[Values]:
  """Returns the checked value of each completion of a group, on its last token."""
  lasts = [len(completion.tokens) - 1 for completion in group]
  result = function(example, list(group))
  if not isinstance(result, (list, tuple, np.ndarray)):
    raise TypeError(
      f"returned {result!r:.80}, which is no list of {len(group)} numbers, one for each completion"
    )
  if len(result) != len(group):
    raise ValueError(f"returned {len(result)} values for {len(group)} completions")
  return [_checked([(last, value)], last) for last, value in zip(lasts, result)]


def _values(function: Reward, example: Example, completion: Completion) -> Values:
  """Returns the checked values that a reward gives a completion."""
  last = len(completion.tokens) - 1
  return _checked(function(example, completion), last)


def guarded(
  call: Guard, function: Callable[..., Result], *args: object
) -> tuple[Result | None, str]:
  """Returns the result of a user's function and "", or None and an error message, see `attempt`."""
  try:
    return call(function, *args), ""
  except GrpoError:
    raise
  except Late as error:
    return None, str(error)
  except Exception as error:  # a user's function may raise anything
    return None, f"{type(error).__name__}: {_text(error)}"[:500]


def ahead(
  functions: Sequence[Callable],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  deadline: float = 0.0,
) -> None:
  """Calls each `score_ahead` with the pairs of examples and completions that are to be scored.

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
    for function in functions:
      _, message = guarded(call, function, list(pairs))
      if message:
        # Its arguments may be bound.
        where = getattr(getattr(function, "func", function), "__module__", "")
        raise SettingError(
          f"rewards.functions, eval.reward: score_ahead of {where} failed on {len(pairs)} "
          f"completions, with rewards.deadline={deadline:g} s for each: {message}; mend it, or "
          "leave it out: rewards work without it, too"
        )


def _text(error: Exception) -> str:
  """Returns the text of an error; "" if it cannot be made into text."""
  try:
    return str(error)
  except Exception:  # a user's class may raise anything
    return ""


def _checked(result: object, last: int) -> Values:
  """Returns the values in what a reward returned; none if it gave no reward."""
  if result is None:
    return []
  if not isinstance(result, (list, tuple)):
    return [(last, _number(result))]
  values = []
  for entry in result:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
      raise TypeError(f"returned {entry!r:.80} in a list, which is no (token index, value)")
    token, value = entry
    integral = isinstance(token, numbers.Integral) and not isinstance(token, bool)
    if not integral or not 0 <= token <= last:
      raise ValueError(f"returned a reward for token {token!r:.80} of {last + 1}")
    values.append((int(token), _number(value)))
  return values


def _number(value: object) -> float:
  """Returns a value as the float that was checked; a class may return another one the next time."""
  if not isinstance(value, (numbers.Real, np.bool_)):
    raise TypeError(f"returned {value!r:.80}, which is no number")
  try:
    number = float(value)
  except OverflowError:  # an integer of hundreds of digits
    number = float("inf")
  if not abs(number) <= LARGEST:
    raise ValueError(f"returned {value!r:.80}, which is no finite reward")
  return number
