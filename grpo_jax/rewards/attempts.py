"""Calls one reward for one completion or one group, and checks what it returns.

Whatever a user's function raises becomes a message. Only a SettingError ends the run.
"""

import collections
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.sandbox.deadline import LATE, Guard, Late
from grpo_jax.types import Completion, Example

ENVIRONMENT = "environment"  # name of the rewards of an environment's turns
REQUIRED = "offline.require"  # setting and name of the reward that admits samples to pairs
Values = list[tuple[int, float]]  # (token index, value) of a completion
# Returns a value for the whole completion, which is given on its last token, or values, or None.
Reward = Callable[[Example, Completion], float | Values | None]
# Takes all completions of an example and returns a value for each; recognized by the name of its
# second parameter.
GroupReward = Callable[[Example, list[Completion]], Sequence[float]]
GROUP_PARAMETER = "completions"
Outcome = tuple[Values, str]  # the values that a completion got, and an error message or ""
Result = TypeVar("Result")

LARGEST = 1e12  # largest size of a reward: with its weight, its square stays finite in float32
LATE_AT_FIRST = 5  # a reward that is late in this many calls, the first of a batch, ends the run


def looks_at_group(function: Callable) -> bool:
  """Returns whether a reward takes a group: whether its second parameter is `completions`."""
  try:
    second = [*inspect.signature(function).parameters.values()][1:2]
  except (TypeError, ValueError):  # written in C, without a signature
    return False
  return [p.name for p in second if p.kind is not p.VAR_POSITIONAL] == [GROUP_PARAMETER]


class FirstCalls:
  """Counts the calls of a batch, to end a run whose reward is late in all the first ones."""

  def __init__(self) -> None:
    """Begins to count."""
    self.calls: collections.Counter[str] = collections.Counter()
    self.late: collections.Counter[str] = collections.Counter()

  def note(self, name: str, outcomes: list[Outcome], what: str = "completions") -> list[Outcome]:
    """Returns the outcomes of one call of the reward `name`, which was for one of `what`."""
    message = next((message for _, message in outcomes if message), "")
    self.calls[name] += 1
    self.late[name] += message.startswith(LATE)
    if self.late[name] == self.calls[name] == LATE_AT_FIRST:
      raise SettingError(
        f"{setting_of(name)}: {name!r} {message}, on each of the first {LATE_AT_FIRST} {what}; use "
        "a faster reward or a larger rewards.deadline"
      )
    return outcomes


def setting_of(name: str) -> str:
  """Returns the setting that has the reward of this name."""
  own = {ENVIRONMENT: "environment.name", REQUIRED: REQUIRED}
  return own.get(name, "rewards.functions")


def attempt(call: Guard, function: Reward, example: Example, completion: Completion) -> Outcome:
  """Returns the values that a reward gives a completion, or none and an error message."""
  values, message = guarded(call, _values, function, example, completion)
  return values or [], message


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
    return None, f"{type(error).__name__}: {text_of(error)}"[:500]


def text_of(error: BaseException) -> str:
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
