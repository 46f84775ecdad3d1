"""Scores completions in worker processes, each as soon as it ends, while others are still sampled.

    the mesh     | sample ............................................ | learn ...
    this host          ended   ended ended   ended            the last    wait, add up
    workers              score... score... score... score...     score...

What a completion gets depends on nothing but the example and itself, or its group, so that the
order in which completions end changes nothing.

Shape letters: P prompts, G samples of each.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.rewards import attempts
from grpo_jax.rewards.attempts import Outcome
from grpo_jax.sampling import rollouts, unfinished
from grpo_jax.sampling.stream import Seen
from grpo_jax.sandbox import worker
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.setup import modules, reward_worker
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Completion, Example

Texts = Sequence[Sequence[Completion | None]]  # [P][G]; None: not here, or not yet


class RewardWorkers(NamedTuple):
  """Worker processes, and the rewards that they give."""

  pool: worker.Pool
  single: list[str]  # names of rewards of one completion
  grouped: list[str]  # names of rewards that look at a group


def make(experiment: Experiment) -> RewardWorkers | None:
  """Returns the workers of `rewards.workers`; None: this process scores.

  Rewards with a `score_ahead`, which have their own way to score a whole batch, stay here.
  """
  r = experiment.rewards
  own = [each for each in experiment.reward_functions if each.reward.score_ahead is None]
  if not r.workers or not own:
    return None
  names = [each.name for each in own]
  entries = [entry for entry in r.functions if entry[0] in names]
  described = reward_worker.describe(entries, r.deadline)
  code = modules.contents(path for _, path, *_ in entries)
  grouped = [each.name for each in own if attempts.looks_at_group(each.reward.score)]
  single = [name for name in names if name not in grouped]
  pool = worker.shared(reward_worker.__name__, described, r.workers, code)
  return RewardWorkers(pool, single, grouped)


def check_json(examples: Sequence[Example]) -> None:
  """Refuses examples that workers would not see as they are."""
  why = "examples are sent as JSON to the processes that score"
  unfinished.check_json(examples, "rewards.workers", why)


class Asked:
  """Holds what workers were asked about one batch; each completion is asked about once."""

  def __init__(
    self,
    workers: RewardWorkers,
    tokenizer: Tokenizer,
    examples: Sequence[Example | None],
    group: int,
  ):
    """Asks nothing yet.

    Args:
      workers: that score.
      tokenizer: of the policy.
      examples: [P].
      group: G.
    """
    check_json([example for example in examples if example])
    self._workers, self._tokenizer, self._examples = workers, tokenizer, examples
    self._texts: list[list[Completion | None]] = [[None] * group for _ in examples]
    self._replies: dict[tuple[str, int, int], Future[Json]] = {}  # of a group under sample 0

  def see(self, seen: Seen) -> None:
    """Asks about the samples and groups that have ended since the last call."""
    ended = seen.finished & (seen.lengths > 0)
    for p, g in np.argwhere(ended).tolist():
      if self._texts[p][g] is None:
        self._texts[p][g] = rollouts.completion(
          seen.tokens[p, g], seen.lengths[p, g], seen.ended[p, g], self._tokenizer
        )
        self._ask(self._workers.single, p, g, [self._texts[p][g]])
    for p in np.flatnonzero(ended.all(axis=1)).tolist():
      self._ask(self._workers.grouped, p, 0, self._texts[p])

  def outcomes(self, texts: Texts, groups: Texts | None) -> dict[str, list[list[Outcome]]]:
    """Returns what each reward gave each completion, by its name, `[P][G]`; waits for the last.

    Args:
      texts: the completions of this process.
      groups: those of all processes; None: these are all.

    Raises:
      GrpoError: a reward ends the run, or is late in all of its first calls.
    """
    for p, group in enumerate(texts):
      if any(each and each.tokens for each in group):
        self._ask(self._workers.grouped, p, 0, (groups or texts)[p])
      for g, completion in enumerate(group):
        if completion and completion.tokens:
          self._ask(self._workers.single, p, g, [completion])
    try:
      with Guard(0.0) as call:  # a signal stops it
        return call(self._wait, texts)
    except BaseException:
      self._workers.pool.drop(self._replies.values())
      raise

  def _ask(
    self, names: Sequence[str], p: int, g: int, completions: Sequence[Completion | None]
  ) -> None:
    """Asks rewards about sample g, or about a whole group as g = 0, unless they were asked."""
    example = self._examples[p]
    assert example is not None  # its completions have tokens
    for name in names:
      if (name, p, g) not in self._replies:
        asked = reward_worker.request(name, example, completions)
        self._replies[name, p, g] = self._workers.pool.submit(asked)

  def _wait(self, texts: Texts) -> dict[str, list[list[Outcome]]]:
    first = attempts.FirstCalls()
    nothing: Outcome = ([], "")
    found: dict[str, list[list[Outcome]]] = {}
    for name in [*self._workers.single, *self._workers.grouped]:
      found[name] = [[nothing] * len(group) for group in texts]
    for (name, p, g), reply in sorted(self._replies.items(), key=lambda item: item[0][1:]):
      count = len(texts[p]) if name in self._workers.grouped else 1
      given = reward_worker.outcomes(reply.result(), count)
      what = "groups" if name in self._workers.grouped else "completions"
      found[name][p][g : g + count] = first.note(name, given, what)
    return found
