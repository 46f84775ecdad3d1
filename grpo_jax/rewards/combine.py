"""Scores groups by several weighted rewards.

A reward that fails stops nothing: it is recorded, and scored as configured. One that says SettingError ends the run.
"""

import numbers
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.types import Completion, Example

# A value for the whole completion, given on its last token, or [(token index, value), ...].
Reward = Callable[[Example, Completion], float | list[tuple[int, float]]]

LARGEST = 1e30  # of a reward's size: sums of weighted rewards stay finite in float32


class Fault(NamedTuple):
  """A reward that raised, or returned what is no finite reward."""

  prompt: int  # p
  sample: int  # g
  name: str
  message: str


class Scores(NamedTuple):
  """Host arrays, as `Rollouts` wants them."""

  rewards: np.ndarray  # [P, G, L] float32, the weighted sum of all rewards given at a token
  given: np.ndarray  # [P, G, L] bool
  parts: np.ndarray  # [P, G, N] float32, each reward alone, unweighted; of step rewards the mean
  faults: list[Fault]


def score(
  rewards: Sequence[tuple[str, Reward, float]],
  examples: Sequence[Example | None],
  completions: Sequence[Sequence[Completion]],
  max_length: int,
  on_error: float = 0.0,
) -> Scores:
  """Every reward of every completion.

  Args:
    rewards: N of (name, function, weight).
    examples: [P]; None marks a row that only fills the batch and is given nothing.
    completions: [P][G].
    max_length: L.
    on_error: the value, before its weight, of a reward that failed; given on the last token.

  Raises:
    SettingError: a reward says that it cannot work as it is set.
  """
  shape = (len(examples), len(completions[0]) if completions else 0)
  sums = np.zeros((*shape, max_length), np.float64)
  given = np.zeros((*shape, max_length), bool)
  parts = np.zeros((*shape, len(rewards)), np.float32)
  faults = []
  for p, (example, group) in enumerate(zip(examples, completions, strict=True)):
    for g, completion in enumerate(group):
      if example is None or not completion.tokens:
        continue
      last = len(completion.tokens) - 1
      for n, (name, function, weight) in enumerate(rewards):
        try:
          values = _checked(function(example, completion), last)
        except SettingError:
          raise
        except Exception as error:  # a user's function: anything
          faults.append(Fault(p, g, name, f"{type(error).__name__}: {error}"[:500]))
          values = [(last, float(on_error))]
        for token, value in values:
          sums[p, g, token] += weight * value
          given[p, g, token] = True
        parts[p, g, n] = sum(value for _, value in values) / max(len(values), 1)
  return Scores(sums.astype(np.float32), given, parts, faults)


def _checked(result, last: int) -> list[tuple[int, float]]:
  """A reward as [(token index, value), ...].

  Raises:
    TypeError, ValueError: no number, not finite, or a token that the completion does not have.
  """
  values = list(result) if isinstance(result, (list, tuple)) else [(last, result)]
  for token, value in values:
    if not isinstance(value, (numbers.Real, np.bool_)):
      raise TypeError(f"returned {value!r:.80}, which is no number")
    if not abs(value) <= LARGEST:
      raise ValueError(f"returned {value!r:.80}, which is no finite reward")
    if isinstance(token, bool) or not isinstance(token, numbers.Integral) or not 0 <= token <= last:
      raise ValueError(f"returned a reward for token {token!r:.80} of {last + 1}")
  return [(int(token), float(value)) for token, value in values]
