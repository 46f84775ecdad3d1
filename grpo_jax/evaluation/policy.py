"""Greedy pass@1, and pass@k and maj@k from n samples, on a test split."""

import collections
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.data import loader
from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.reward_models import agreement
from grpo_jax.rewards import combine
from grpo_jax.run import compile_cache
from grpo_jax.sampling import generate
from grpo_jax.sampling.generate import Generator
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.types import TRUNCATED, Completion, Example, Rollouts


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Unbiased estimate of the probability that one of k samples is right, from n (Chen et al. 2021,
  eq. 1).
  """
  return 1.0 if n - correct < k else 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(solved: Sequence[bool], votes: Sequence[Any]) -> float:
  """1 if the most frequent final answer is right, else 0; answers that tie for the most votes share
  the point.

  Args:
    solved: of each sample.
    votes: the answer of each sample, as `answer_of` of its reward's file says; None does not count.
  """
  found: dict[Any, list[bool]] = collections.defaultdict(list)
  for right, answer in zip(solved, votes, strict=True):
    if answer is not None:
      found[answer].append(bool(right))
  if not found:
    return 0.0
  most = max(map(len, found.values()))
  return float(np.mean([np.mean(v) for v in found.values() if len(v) == most]))


class Judged(NamedTuple):
  """What the reward says of one completion."""

  right: bool
  vote: Any  # the answer, see `majority`
  fault: str  # what went wrong; "" where nothing did
  learned: list[float]  # what each reward model gives it; NaN where it gives nothing


class Outcomes(NamedTuple):
  """What became of N problems with G samples each; a prompt that is too long counts as not solved."""

  solved: list[list[bool]]  # [N][G]
  # [N], see `majority`; None where the reward's file has no `answer_of`
  majority: list[float] | None
  lengths: list[int]  # tokens of every completion
  truncated: list[bool]  # of every completion
  faults: list[str]  # what the reward said where it failed; that completion counts as not solved
  # [N][G] by the name of each reward model; NaN where it gave nothing
  learned: dict[str, list[list[float]]]
  too_long: list[bool]  # [N], whether the prompt was


def solve(
  generator: Generator,
  params: Any,
  examples: Sequence[Example],
  solved: Callable[[Example, Completion], float],
  answer_of: Callable[[Completion], Hashable | None] | None,
  key: jax.Array,
  *,
  batch: int,
  progress: Callable[[int, int], None],
  deadline: float = 0.0,
  score_ahead: Callable[[list[tuple[Example, Completion]]], None] | None = None,
  learned: Callable[[Rollouts], Sequence[tuple[str, Callable, float]]] | None = None,
  seen: Callable[[Example, Completion, Judged], None] | None = None,
) -> Outcomes:
  """Samples completions of all `examples`, `batch` prompts at a time, and says which are right.

  Args:
    generator: its sampler decides on G and on the temperature.
    params: the policy's tree.
    examples: the N problems.
    solved: the reward that counts as right when it is at least 1 (where it rewards steps: on the
      last of them).
    answer_of: what a completion votes for; without it there is no vote.
    key: of the noise.
    batch: prompts at a time.
    progress: called with the number of problems done and N after each batch.
    deadline: seconds after which the reward of one completion has failed; 0: none.
    score_ahead: called with a batch before its completions are scored one by one.
    learned: what reward models give to sampled rollouts, as `model_rewards.given_by` returns it;
      None: there are none.
    seen: called with each completion of this process's own, in their order, and what was said of
      it.

  Raises:
    SettingError: the reward failed on every completion so far.
    hosts.Elsewhere: it failed on another process in a way that no reward may.
    guard.Stopped: a signal came while the reward ran.
  """
  found = Outcomes([], [] if answer_of else None, [], [], [], {}, [])
  for step, some in enumerate(loader.in_order(examples, batch)):
    sampled, _ = generate.generate(generator, params, some, jax.random.fold_in(key, step))
    given = learned(sampled) if learned else []
    ask = functools.partial(
      _judge, generator, sampled, some, solved, answer_of, deadline, score_ahead, seen
    )
    own = hosts.together(functools.partial(ask, [function for _, function, _ in given]))
    judged = {place: each for share in hosts.gather(own) for place, each in share.items()}
    for p, example in enumerate(some):
      if example is not None:
        group = [judged.get((p, g)) for g in range(len(sampled.lengths[p]))]
        _add(found, sampled.lengths[p], sampled.ended[p], group)
        for n, (name, _, _) in enumerate(given):
          found.learned.setdefault(name, []).append(
            [each.learned[n] if each else math.nan for each in group]
          )
    if found.faults and len(found.faults) == len(found.lengths):
      raise SettingError(
        f"eval.reward: failed on all {len(found.faults)} completions of the test data, first: "
        f"{found.faults[0]}; use "
        "a reward that can score such answers"
      )
    progress(len(found.solved), len(examples))
  return found


def _judge(
  generator: Generator,
  sampled: Rollouts,
  examples: Sequence[Example | None],
  solved: Callable,
  answer_of: Callable | None,
  deadline: float,
  score_ahead: Callable | None,
  seen: Callable | None,
  given: Sequence[Callable],
) -> dict[tuple[int, int], Judged]:
  """What the reward says of this process's own completions, by their places (prompt, sample)."""
  found, texts = {}, generate.completions(generator, sampled)
  with compile_cache.same_settings("the reward of the evaluation"), Guard(deadline) as call:
    combine.ahead([score_ahead] if score_ahead else [], examples, texts, deadline)
    for p, (example, group) in enumerate(zip(examples, texts)):
      for g, completion in enumerate(group):
        if example is None or completion is None or not completion.tokens:
          continue
        right, message = is_right(call, solved, example, completion)
        vote = None
        if answer_of and not message:
          vote, message = combine.guarded(call, answer_of, completion)
        found[p, g] = Judged(right, vote, message, [_mean(of(p, g, completion)) for of in given])
        if seen:
          seen(example, completion, found[p, g])
  return found


def _mean(values: list[tuple[int, float]]) -> float:
  """The mean of a completion's rewards, [(token index, value), ...]; NaN where it was given none."""
  return sum(value for _, value in values) / len(values) if values else math.nan


def is_right(
  call: Guard, solved: Callable, example: Example, completion: Completion
) -> tuple[bool, str]:
  """Returns whether a reward says that a completion is right (`combine.RIGHT`); and what went wrong
  with it, or "".
  """
  values, message = combine.attempt(call, solved, example, completion)
  return bool(values) and values[-1][1] >= combine.RIGHT, message


def _add(
  found: Outcomes, lengths: np.ndarray, ended: np.ndarray, judged: list[Judged | None]
) -> None:
  """Adds one problem to the outcomes: the lengths of its G samples, why they ended, and what was
  said of them.
  """
  found.too_long.append(not lengths[0])
  if found.too_long[-1]:
    found.solved.append([False] * len(lengths))
    if found.majority is not None:
      found.majority.append(0.0)
    return
  right = [each.right for each in judged]
  found.faults.extend(each.fault for each in judged if each.fault)
  found.solved.append(right)
  if found.majority is not None:
    found.majority.append(majority(right, [each.vote for each in judged]))
  found.lengths.extend(lengths.tolist())
  found.truncated.extend((ended == TRUNCATED).tolist())


def greedy_metrics(found: Outcomes) -> dict[str, float]:
  """Shares of all problems from greedy decoding: `accuracy`; mean `length` in tokens, and the share
  `truncated`.
  """
  return {
    "accuracy": float(np.mean(found.solved)),
    "length": float(np.mean(found.lengths or [0])),
    "truncated": float(np.mean(found.truncated or [0])),
  }


def sampled_metrics(found: Outcomes) -> dict[str, float]:
  """Shares of all problems from k samples each: `pass@1` (their mean), `pass@k` and, with votes,
  `maj@k`.
  """
  return {name: float(np.mean(each)) for name, each in _shares(found).items()}


def metrics_of(greedy: Outcomes, sampled: Outcomes | None = None) -> dict[str, float]:
  """The metrics of both kinds of decoding.

  Where there are any: `reward_faults`, completions on which the reward failed, and
  `prompts_too_long`, problems that were not asked.
  """
  found = greedy_metrics(greedy) | (sampled_metrics(sampled) if sampled else {})
  faults = sum(len(each.faults) for each in (greedy, sampled) if each)
  counts = {"reward_faults": faults, "prompts_too_long": sum(greedy.too_long)}
  return found | {name: count for name, count in counts.items() if count}


def by_problem(greedy: Outcomes, sampled: Outcomes | None = None) -> dict[str, np.ndarray]:
  """`accuracy` and, from samples, `pass@1`, `pass@k` and `maj@k` of each problem, [N] each; metrics
  are their means.
  """
  return {"accuracy": np.mean(greedy.solved, axis=1)} | (_shares(sampled) if sampled else {})


def paired(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
  """Returns how much better `after` is than `before` on the same problems, and the standard error
  of that.

  The mean of the differences [N], and sqrt(their variance / N), the variance with N - 1 in its
  denominator: what both solve, and what neither does, takes no part in the noise. Of shares that
  are 0 or 1 it is the error behind McNemar's test. The error of a single problem is NaN.
  """
  differences = np.asarray(after, float) - np.asarray(before, float)
  n = len(differences)
  return float(differences.mean()), float(np.sqrt(differences.var(ddof=1) / n)) if n > 1 else float(
    "nan"
  )


def _shares(found: Outcomes) -> dict[str, np.ndarray]:
  """`pass@1`, `pass@k` and, with votes, `maj@k` of each problem, [N] each."""
  k = len(found.solved[0])
  shares = {
    "pass@1": np.mean(found.solved, axis=1),
    f"pass@{k}": np.array([pass_at_k(k, sum(right), k) for right in found.solved]),
  }
  return shares if found.majority is None else shares | {f"maj@{k}": np.array(found.majority)}


def learned_metrics(found: Outcomes) -> dict[str, float]:
  """Means of what each reward model gives, `reward/NAME`, and how well that tells right from wrong,
  `agreement/NAME`.

  The agreement is `agreement.area`, over all completions that were given something. What is NaN is
  left out: there is no agreement where all are right or all are wrong.
  """
  numbers, right = {}, np.array(found.solved, bool)
  for name, each in found.learned.items():
    values = np.array(each, np.float64)
    given = values[~np.isnan(values)]
    numbers[f"reward/{name}"] = float(given.mean()) if given.size else math.nan
    numbers[f"agreement/{name}"] = agreement.area(values, right)
  return {name: value for name, value in numbers.items() if not math.isnan(value)}
