"""Greedy pass@1, and pass@k and maj@k from n samples, on a test split."""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax import generate
from grpo_jax.data import loader
from grpo_jax.errors import SettingError
from grpo_jax.generate import Generator
from grpo_jax.guard import Guard
from grpo_jax.rewards import combine
from grpo_jax.rewards.math import final_answer, number
from grpo_jax.types import TRUNCATED, Completion, Example


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Unbiased estimate of the probability that one of k samples is right, from n (Chen et al. 2021, eq. 1)."""
  return 1.0 if n - correct < k else 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(solved: Sequence[bool], completions: Sequence[Completion]) -> float:
  """1 if the most frequent final answer is right, else 0; answers that tie for the most votes share the point.

  Args:
    solved: of each sample.
    completions: the samples; those without an answer do not vote.
  """
  votes: dict[Any, list[bool]] = collections.defaultdict(list)
  for right, completion in zip(solved, completions, strict=True):
    answer = final_answer(completion)
    if answer is not None:
      value = number(answer)
      votes[answer if value is None else value].append(bool(right))
  if not votes:
    return 0.0
  most = max(map(len, votes.values()))
  return float(np.mean([np.mean(v) for v in votes.values() if len(v) == most]))


class Outcomes(NamedTuple):
  """What became of N problems with G samples each; a prompt that is too long counts as not solved."""

  solved: list[list[bool]]  # [N][G]
  majority: list[float]  # [N], see `majority`
  lengths: list[int]  # tokens of every completion
  truncated: list[bool]  # of every completion
  faults: list[str]  # what the reward said where it failed; that completion counts as not solved


def solve(
  generator: Generator,
  params: Any,
  examples: Sequence[Example],
  solved: Callable[[Example, Completion], float],
  key: jax.Array,
  *,
  batch: int,
  progress: Callable[[int, int], None],
  deadline: float = 0.0,
) -> Outcomes:
  """Samples completions of all `examples`, `batch` prompts at a time, and says which are right.

  Args:
    generator: its sampler decides on G and on the temperature.
    params: the policy's tree.
    examples: the N problems.
    solved: the reward that counts as right when it is at least 1 (where it rewards steps: on the last of them).
    key: of the noise.
    batch: prompts at a time.
    progress: called with the number of problems done and N after each batch.
    deadline: seconds after which the reward of one completion has failed; 0: none.

  Raises:
    SettingError: the reward failed on every completion so far.
    guard.Stopped: a signal came while the reward ran.
  """
  found = Outcomes([], [], [], [], [])
  for step, some in enumerate(loader.in_order(examples, batch)):
    sampled, _ = generate.generate(generator, params, some, jax.random.fold_in(key, step))
    with Guard(deadline) as call:
      for example, group in zip(some, generate.completions(generator, sampled)):
        if example is not None:
          _add(found, example, group, functools.partial(combine.attempt, call, solved))
    if found.faults and len(found.faults) == len(found.lengths):
      raise SettingError(
        f"eval.reward: failed on all {len(found.faults)} completions of the test data, first: {found.faults[0]}; use "
        "a reward that can score such answers"
      )
    progress(len(found.solved), len(examples))
  return found


def _add(found: Outcomes, example: Example, group: list[Completion], attempt: Callable) -> None:
  """Adds one problem to the outcomes; `attempt` is `combine.attempt` of the reward."""
  if not group[0].tokens:  # its prompt was too long
    found.solved.append([False] * len(group))
    found.majority.append(0.0)
    return
  right = []
  for completion in group:
    values, message = attempt(example, completion)
    right.append(bool(values) and values[-1][1] >= 1.0)
    found.faults.extend([message] if message else [])
  found.solved.append(right)
  found.majority.append(majority(right, group))
  found.lengths.extend(len(completion.tokens) for completion in group)
  found.truncated.extend(completion.ended == TRUNCATED for completion in group)


def greedy_metrics(found: Outcomes) -> dict[str, float]:
  """Shares of all problems from greedy decoding: `accuracy`; mean `length` in tokens, and the share `truncated`."""
  return {
    "accuracy": float(np.mean(found.solved)),
    "length": float(np.mean(found.lengths or [0])),
    "truncated": float(np.mean(found.truncated or [0])),
  }


def sampled_metrics(found: Outcomes) -> dict[str, float]:
  """Shares of all problems from k samples each: `pass@1` (their mean), `pass@k` and `maj@k`."""
  k = len(found.solved[0])
  return {
    "pass@1": float(np.mean(found.solved)),
    f"pass@{k}": float(np.mean([pass_at_k(k, sum(right), k) for right in found.solved])),
    f"maj@{k}": float(np.mean(found.majority)),
  }
