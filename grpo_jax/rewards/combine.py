"""Scores groups by several weighted rewards.

A reward that fails stops nothing: the fault is recorded and a configured value is given. One that
fails on every completion, or raises SettingError, ends the run. One that returns None, or an empty
list, gives the completion no reward; what no reward was given to takes no part in the mean of its
group (TRL leaves such a reward out, too, but counts a completion without any as 0).

A reward that looks at a whole group is called once for it, and gives each of its completions a
number.

No reward can change what another one sees, or where its own value goes: examples and completions
cannot be changed (types.py), one that tries is a fault, and lists are made anew for each call.
"""

import collections
import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.sandbox.deadline import LATE, Guard, Late
from grpo_jax.types import Completion, Example

# Returns a value for the whole completion, which is given on its last token, or [(token index,
# value), ...], or None.
Reward = Callable[[Example, Completion], float | list[tuple[int, float]] | None]
# Takes all completions of an example and returns a value for each; known by the name of its second
# parameter.
GroupReward = Callable[[Example, list[Completion]], Sequence[float]]
OF_GROUP = "completions"
# what a completion was given, and what went wrong or ""
Found = tuple[list[tuple[int, float]], str]

LARGEST = 1e30  # the largest size of a reward: sums of weighted rewards stay finite in float32
RIGHT = 1.0  # a completion is right from this reward on, of the function that says what is right
# a reward that is late on so many completions, the first of a batch, ends the run
LATE_AT_FIRST = 5


class Fault(NamedTuple):
  """A reward that raised an exception, was late, or returned what is no finite reward."""

  prompt: int  # index in P
  sample: int  # index in G
  name: str  # of the reward
  message: str


class Scores(NamedTuple):
  """The rewards of a batch, or of one process's share of it, as numpy arrays that go into
  `Rollouts`.
  """

  rewards: np.ndarray  # [P, G, L] float32, the weighted sum of all rewards given at a token
  given: np.ndarray  # [P, G, L] bool, where a reward was given
  # [P, G, N] float32, each reward alone, unweighted; the mean over steps where it has several
  # values. NaN where it gave this completion no reward (0 would be a reward), 0 for a prompt that
  # only fills the batch.
  components: np.ndarray
  faults: list[Fault]


def looks_at_group(function: Callable) -> bool:
  """Returns whether a reward takes a whole group: whether its second parameter is called
  `completions`.
  """
  try:
    second = [*inspect.signature(function).parameters.values()][1:2]
  except (TypeError, ValueError):  # written in C, without a signature
    return False
  return [each.name for each in second if each.kind is not each.VAR_POSITIONAL] == [OF_GROUP]


def score(
  rewards: Sequence[tuple[str, Reward | GroupReward, float]],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion | None]],
  max_length: int,
  on_error: float = 0.0,
  deadline: float = 0.0,
  models: Sequence[tuple[str, Callable, float]] = (),
  groups: Sequence[Sequence[Completion | None]] | None = None,
) -> Scores:
  """Computes every reward of every completion. `check_some_worked` is to be called when all of a
  batch has been scored.

  Args:
    rewards: N of (name, function, weight).
    examples: P examples; None marks a prompt that only fills the batch and is given nothing.
    completions: G completions of each of the P prompts; None where another process scores it: it is
      given nothing.
    max_length: L.
    on_error: the value, before its weight, of a reward that failed; it is given on the last token.
    deadline: seconds after which a reward of one completion, or of one group, has failed; 0: none.
    models: more of them, whose functions are called with (p, g, completion): the scores of reward
      models.
    groups: `completions` with those that other processes score, for rewards that look at a group;
      None: there are none.

  Raises:
    SettingError: a reward says that it cannot work as it is set, or is late in each of its first
      calls.
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
      of_group = {
        name: call(name, attempt_group, f, example, others) for name, f in together.items()
      }
      for g, completion in enumerate(group):
        if completion is None or not completion.tokens:
          continue
        last = len(completion.tokens) - 1
        judged = [
          (name, functools.partial(_at_place, of, p, g), weight) for name, of, weight in models
        ]
        for n, (name, function, weight) in enumerate([*rewards, *judged]):
          if name in together:
            values, message = of_group[name][g]
          else:
            ((values, message),) = call(name, _attempt_one, function, example, completion)
          if message:
            faults.append(Fault(p, g, name, message))
            values = [(last, float(on_error))]
          for token, value in values:
            sums[p, g, token] += weight * value
            # one of weight 0 is in view, and nothing is learned from it
            given[p, g, token] |= weight != 0
          components[p, g, n] = (
            sum(value for _, value in values) / len(values) if values else np.nan
          )
  return Scores(sums.astype(np.float32), given, components, faults)


def _in_time(
  guard: Guard,
  asked: collections.Counter,
  late: collections.Counter,
  name: str,
  attempted: Callable[..., list[Found]],
  *args: Any,
) -> list[Found]:
  """What a reward gives in one call; counts the call, and refuses a reward that was late in all of
  its first ones.
  """
  found = attempted(guard, *args)
  message = next((message for _, message in found if message), "")
  asked[name] += 1
  late[name] += message.startswith(LATE)
  if late[name] == asked[name] == LATE_AT_FIRST:
    what = "groups" if attempted is attempt_group else "completions"
    raise SettingError(
      f"rewards.functions: {name!r} {message}, on each of the first {LATE_AT_FIRST} {what}; use a "
      "faster reward or a "
      "larger rewards.deadline"
    )
  return found


def _at_place(
  function: Callable, p: int, g: int, example: Example, completion: Completion
) -> list[tuple[int, float]]:
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
        f"rewards.functions: {fault.name!r} failed on all {asked} completions of a step, first: "
        f"{fault.message}; mend "
        "it, or leave it out"
      )


def given_only(scores: Scores) -> tuple[Any, ...]:
  """Returns what was given and where, which is small, to be put together by `join`; with the
  faults.
  """
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
  return Scores(
    np.zeros(shape, np.float32),
    np.zeros(shape, bool),
    np.zeros((*shape[:2], rewards), np.float32),
    [],
  )


def attempt(call: Guard, function: Reward, example: Example, completion: Completion) -> Found:
  """Returns what a reward gives a completion, [(token index, value), ...], and ""; or [] and what
  went wrong.

  Raises:
    SettingError: the reward says that it cannot work as it is set.
    guard.Stopped: a signal came meanwhile.
  """
  found, message = guarded(call, _values, function, example, completion)
  return found or [], message


def _attempt_one(
  call: Guard, function: Reward, example: Example, completion: Completion
) -> list[Found]:
  return [attempt(call, function, example, completion)]


def attempt_group(
  call: Guard, function: GroupReward, example: Example, group: Sequence[Completion | None]
) -> list[Found]:
  """Returns what a reward gives each completion of a group, as `attempt` does; what goes wrong is a
  fault of all.

  The reward does not see places of the group without a completion, and gives them nothing.

  Raises:
    SettingError: the reward says that it cannot work as it is set.
    guard.Stopped: a signal came meanwhile.
  """
  real = [completion for completion in group if completion and completion.tokens]
  values, message = guarded(call, _values_of_group, function, example, real)
  given = iter(values or [[]] * len(real))
  return [
    (next(given), message) if completion and completion.tokens else ([], "") for completion in group
  ]


def _values_of_group(
  function: GroupReward, example: Example, group: list[Completion]
) -> list[list[tuple[int, float]]]:
  """What a reward gives each completion of a group, checked: an outcome, on its last token.

  Raises:
    TypeError: it returned no list, or a value that is no number.
    ValueError: it returned a list of another length, or a value that is not finite.
  """
  lasts = [len(completion.tokens) - 1 for completion in group]
  result = function(example, list(group))
  if not isinstance(result, (list, tuple, np.ndarray)):
    raise TypeError(
      f"returned {result!r:.80}, which is no list of {len(group)} numbers, one for each completion"
    )
  if len(result) != len(group):
    raise ValueError(f"returned {len(result)} values for {len(group)} completions")
  return [_checked([(last, value)], last) for last, value in zip(lasts, result)]


def _values(function: Reward, example: Example, completion: Completion) -> list[tuple[int, float]]:
  """What a reward gives a completion, checked."""
  last = len(completion.tokens) - 1
  return _checked(function(example, completion), last)


def guarded(call: Guard, function: Callable, *args: Any) -> tuple[Any, str]:
  """Returns what a user's function returns and "", or None and what went wrong; raises as `attempt`
  does.
  """
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
  deadline: float = 0.0,
) -> None:
  """Calls each `score_ahead` with the pairs of [P] examples and their [P][G] completions that are
  to be scored.

  Args:
    functions: which are called.
    examples, completions: the batch, as for `score`.
    deadline: seconds for one completion; a call has as many of them as there are pairs, since it
      stands for as many.

  Raises:
    SettingError: one raised, or took longer; names its module.
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
        # its arguments may be bound
        where = getattr(getattr(function, "func", function), "__module__", "")
        raise SettingError(
          f"rewards.functions, eval.reward: score_ahead of {where} failed on {len(pairs)} "
          "completions, with "
          f"rewards.deadline={deadline:g} s for each: {message}; mend it, or leave it out: rewards "
          "work without it, too"
        )


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
  if not isinstance(result, (list, tuple)):
    return [(last, _number(result))]
  values = []
  for each in result:
    if not isinstance(each, (list, tuple)) or len(each) != 2:
      raise TypeError(f"returned {each!r:.80} in a list, which is no (token index, value)")
    token, value = each
    if isinstance(token, bool) or not isinstance(token, numbers.Integral) or not 0 <= token <= last:
      raise ValueError(f"returned a reward for token {token!r:.80} of {last + 1}")
    values.append((int(token), _number(value)))
  return values


def _number(value: Any) -> float:
  """Returns a value as a float, the same one that was checked: a class may say otherwise when it is
  asked again.

  Raises:
    TypeError: it is no number.
    ValueError: it is not finite.
  """
  if not isinstance(value, (numbers.Real, np.bool_)):
    raise TypeError(f"returned {value!r:.80}, which is no number")
  try:
    number = float(value)
  except OverflowError:  # an integer of hundreds of digits
    number = float("inf")
  if not abs(number) <= LARGEST:
    raise ValueError(f"returned {value!r:.80}, which is no finite reward")
  return number
