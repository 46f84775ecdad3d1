"""Measures a policy on test problems: greedy pass@1, and pass@k and maj@k from n samples."""

import collections
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.data import loader
from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Params
from grpo_jax.reward_models import agreement
from grpo_jax.reward_models.rewards import Given, NamedScores
from grpo_jax.rewards import attempts, combine
from grpo_jax.run import compile_cache
from grpo_jax.sampling import episodes, generate, rollouts
from grpo_jax.sampling.generate import Generator
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.types import TRUNCATED, Completion, Example, KnownRollouts

Vote = Hashable  # the final answer of a completion, as `answer_of` of its reward's file returns it
ENVIRONMENT = "environment: "  # how messages of an environment that failed begin


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Estimates without bias the probability that one of k samples is right (Chen 2021, eq. 1)."""
  return 1.0 if n - correct < k else 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(solved: Sequence[bool], votes: Sequence[Vote | None]) -> float:
  """Returns 1 if the most frequent answer is right, else 0; answers that tie share the point.

  Args:
    solved: of each sample.
    votes: the answer of each sample; None does not count.
  """
  by_answer: dict[Vote, list[bool]] = collections.defaultdict(list)
  for right, answer in zip(solved, votes, strict=True):
    if answer is not None:
      by_answer[answer].append(bool(right))
  if not by_answer:
    return 0.0
  most = max(map(len, by_answer.values()))
  return float(np.mean([np.mean(v) for v in by_answer.values() if len(v) == most]))


class Judged(NamedTuple):
  """Judgement of one completion by the reward and by reward models."""

  right: bool
  vote: Vote | None  # the answer, see `majority`
  fault: str  # what went wrong; empty if nothing did
  learned: list[float]  # of each reward model; NaN if it gives nothing


class Outcomes(NamedTuple):
  """Results of N problems with G samples each; a prompt that is too long is not solved."""

  solved: list[list[bool]]  # [N][G]
  majority: list[float] | None  # [N], see `majority`; None if the reward's file has no `answer_of`
  lengths: list[int]  # tokens of every completion
  truncated: list[bool]  # of every completion
  faults: list[str]  # messages of the reward, its answer_of or the environment that failed
  learned: dict[str, list[list[float]]]  # [N][G] by the name of each reward model, with NaN
  too_long: list[bool]  # [N], of the prompt


def solve(
  generator: Generator,
  params: Params,
  examples: Sequence[Example],
  solved: Callable[[Example, Completion], float],
  answer_of: Callable[[Completion], Vote | None] | None,
  key: jax.Array,
  *,
  games: jax.Array,
  batch: int,
  progress: Callable[[int, int], None],
  deadline: float = 0.0,
  score_ahead: Callable[[list[tuple[Example, Completion]]], None] | None = None,
  learned: Callable[[KnownRollouts], Sequence[NamedScores]] | None = None,
  seen: Callable[[Example, Completion, Judged], None] | None = None,
) -> Outcomes:
  """Samples completions of all `examples`, `batch` prompts at a time, and judges them.

  Args:
    generator: its sampler decides on G and on the temperature.
    params: the policy's tree.
    examples: the N problems.
    solved: the reward; a completion is right if it gives at least 1 (on the last step, if it
      rewards steps).
    answer_of: the vote of a completion; None: there is no vote.
    key: of the noise.
    games: key of what an environment draws when it begins; by it and its place a problem is the
      same game in each evaluation.
    batch: prompts at a time.
    progress: called with the number of problems done and N after each batch.
    deadline: seconds after which the reward of one completion has failed; 0: none.
    score_ahead: called with a batch before its completions are scored one by one.
    learned: returns the scores of reward models (`rewards.given_by`); None: there are none.
    seen: called with each completion of this process, in order, and its judgement.

  Raises:
    SettingError: the reward failed on every completion so far.
    hosts.Elsewhere: it failed on another process in a way that no reward may.
    deadline.Stopped: a signal came while the reward ran.
  """
  outcomes = Outcomes([], [] if answer_of else None, [], [], [], {}, [])
  for step, some in enumerate(loader.in_order(examples, batch)):
    of_batch = jax.random.fold_in(key, step)
    numbers = episodes.reset_numbers(games, step * batch + np.arange(batch))
    sampled, _, failures = generate.generate(generator, params, some, of_batch, games=numbers)
    scores = learned(sampled) if learned else []
    judge = functools.partial(
      _judge, generator, sampled, failures, some, solved, answer_of, deadline, score_ahead, seen
    )
    share = hosts.together(functools.partial(judge, [function for _, function, _ in scores]))
    judged = {place: one for share in hosts.gather(share) for place, one in share.items()}
    tokens = rollouts.sampled_lengths(sampled)
    for p, example in enumerate(some):
      if example is not None:
        lengths, ended = tokens[p], sampled.ended[p]
        group = [judged[p, g] for g in range(len(lengths))] if lengths[0] else []
        _add(outcomes, lengths, ended, group)
        for n, (name, _, _) in enumerate(scores):
          values = [one.learned[n] for one in group] or [math.nan] * len(lengths)
          outcomes.learned.setdefault(name, []).append(values)
    if outcomes.faults and len(outcomes.faults) == len(outcomes.lengths):
      raise SettingError(_all_failed(outcomes.faults))
    progress(len(outcomes.solved), len(examples))
  return outcomes


def _judge(
  generator: Generator,
  sampled: KnownRollouts,
  failures: Mapping[tuple[int, int], str],
  examples: Sequence[Example | None],
  solved: Callable[[Example, Completion], float],
  answer_of: Callable[[Completion], Vote | None] | None,
  deadline: float,
  score_ahead: Callable[[list[tuple[Example, Completion]]], None] | None,
  seen: Callable[[Example, Completion, Judged], None] | None,
  learned: Sequence[Given],
) -> dict[tuple[int, int], Judged]:
  """Returns the judgements of this process's completions by their places (prompt, sample).

  An episode in which the environment failed, see `Generated`, is not solved and has no vote.
  """
  judged, texts = {}, generate.completions(generator, sampled)
  with compile_cache.same_settings("the reward of the evaluation"), Guard(deadline) as call:
    combine.ahead([score_ahead] if score_ahead else [], examples, texts, deadline)
    for p, (example, group) in enumerate(zip(examples, texts)):
      for g, completion in enumerate(group):
        if example is None or completion is None or not completion.tokens:
          continue
        if (p, g) in failures:
          right, message = False, ENVIRONMENT + failures[p, g]
        else:
          right, message = is_right(call, solved, example, completion)
        vote = None
        if answer_of and not message:
          vote, message = attempts.guarded(call, _hashed, answer_of, completion)
        values = [_mean(given(p, g, completion)) for given in learned]
        judged[p, g] = Judged(right, vote, message, values)
        if seen:
          seen(example, completion, judged[p, g])
  return judged


def _hashed(answer_of: Callable[[Completion], Vote | None], completion: Completion) -> Vote | None:
  """Returns the vote of a completion; TypeError: it is no answer that can be counted."""
  vote = answer_of(completion)
  hash(vote)
  return vote


def _all_failed(faults: list[str]) -> str:
  """Returns what to say where every completion failed, from their messages."""
  count, first = len(faults), faults[0]
  if first.startswith(ENVIRONMENT):
    return (
      f"environment.name: failed in all {count} episodes of the test data, first: "
      f"{first.removeprefix(ENVIRONMENT)}"
    )
  return (
    f"eval.reward: failed on all {count} completions of the test data, first: {first}; use "
    "one that can score such answers"
  )


def _mean(values: list[tuple[int, float]]) -> float:
  """Returns the mean of a completion's rewards [(token index, value), ...]; NaN without any."""
  return sum(value for _, value in values) / len(values) if values else math.nan


def is_right(
  call: Guard, solved: Callable, example: Example, completion: Completion
) -> tuple[bool, str]:
  """Returns whether a completion is right (`combine.RIGHT`), and what went wrong, or ""."""
  values, message = attempts.attempt(call, solved, example, completion)
  return bool(values) and values[-1][1] >= combine.RIGHT, message


def _add(
  outcomes: Outcomes, lengths: np.ndarray, ended: np.ndarray, judged: Sequence[Judged]
) -> None:
  """Adds the G samples of one problem to the outcomes; `judged` is empty if it is too long."""
  outcomes.too_long.append(not judged)
  if not judged:
    outcomes.solved.append([False] * len(lengths))
    if outcomes.majority is not None:
      outcomes.majority.append(0.0)
    return
  right = [one.right for one in judged]
  outcomes.faults.extend(one.fault for one in judged if one.fault)
  outcomes.solved.append(right)
  if outcomes.majority is not None:
    outcomes.majority.append(majority(right, [one.vote for one in judged]))
  outcomes.lengths.extend(lengths.tolist())
  outcomes.truncated.extend((ended == TRUNCATED).tolist())


def greedy_metrics(outcomes: Outcomes) -> dict[str, float]:
  """Returns `accuracy` and the share `truncated`, and the mean `length` in tokens."""
  return {
    "accuracy": float(np.mean(outcomes.solved)),
    "length": float(np.mean(outcomes.lengths or [0])),
    "truncated": float(np.mean(outcomes.truncated or [False])),
  }


def sampled_metrics(outcomes: Outcomes) -> dict[str, float]:
  """Returns `pass@1` (the mean of k samples), `pass@k` and, with votes, `maj@k`."""
  return {name: float(np.mean(shares)) for name, shares in _shares(outcomes).items()}


def metrics_of(greedy: Outcomes, sampled: Outcomes | None = None) -> dict[str, float]:
  """Returns the metrics of both kinds of decoding.

  With `reward_faults`, completions on which the reward or the environment failed (the greedy
  samples of a problem are copies of one), and
  `prompts_too_long`, problems that were not sampled, if there are any.
  """
  metrics = greedy_metrics(greedy) | (sampled_metrics(sampled) if sampled else {})
  copies = len(greedy.solved[0]) if greedy.solved else 1  # of one completion
  faults = math.ceil(len(greedy.faults) / copies) + (len(sampled.faults) if sampled else 0)
  counts = {"reward_faults": faults, "prompts_too_long": sum(greedy.too_long)}
  return metrics | {name: count for name, count in counts.items() if count}


def by_problem(greedy: Outcomes, sampled: Outcomes | None = None) -> dict[str, np.ndarray]:
  """Returns the values `[N]` of single problems whose means are the metrics."""
  return {"accuracy": np.mean(greedy.solved, axis=1)} | (_shares(sampled) if sampled else {})


def paired(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
  """Returns the mean of `after - before` on the same problems, and its standard error.

  The error is sqrt(variance of the differences / N), with N - 1 in the variance's denominator:
  problems that both solve, or neither, add no noise. For values 0 and 1 it is the error behind
  McNemar's test. The error of a single problem is NaN.
  """
  differences = np.asarray(after, float) - np.asarray(before, float)
  n = len(differences)
  error = float(np.sqrt(differences.var(ddof=1) / n)) if n > 1 else math.nan
  return float(differences.mean()), error


def _shares(outcomes: Outcomes) -> dict[str, np.ndarray]:
  """Returns `pass@1`, `pass@k` and, with votes, `maj@k` of each problem, [N] each."""
  k = len(outcomes.solved[0])
  shares = {
    "pass@1": np.mean(outcomes.solved, axis=1),
    f"pass@{k}": np.array([pass_at_k(k, sum(right), k) for right in outcomes.solved]),
  }
  if outcomes.majority is not None:
    shares[f"maj@{k}"] = np.array(outcomes.majority)
  return shares


def learned_metrics(outcomes: Outcomes) -> dict[str, float]:
  """Returns the mean score `reward/NAME` of each reward model, and `agreement/NAME`.

  The agreement is `agreement.area` of right and wrong completions that were given a score. NaN is
  left out: there is no agreement if all are right or all are wrong.
  """
  metrics, right = {}, np.array(outcomes.solved, bool)
  for name, scores in outcomes.learned.items():
    values = np.array(scores, np.float64)
    given = values[~np.isnan(values)]
    metrics[f"reward/{name}"] = float(given.mean()) if given.size else math.nan
    metrics[f"agreement/{name}"] = agreement.area(values, right)
  return {name: value for name, value in metrics.items() if not math.isnan(value)}
