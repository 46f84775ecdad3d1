"""A batch to learn from: sampled, scored and, with dynamic sampling, chosen."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax import hosts, metrics, sampler
from grpo_jax.errors import SettingError
from grpo_jax.generate import Generator, completions, generate
from grpo_jax.loops import build, checks, imports
from grpo_jax.objectives.contract import Objective
from grpo_jax.ops.advantages import totals
from grpo_jax.rewards import combine
from grpo_jax.types import Completion, Example, Prompts, Rollouts


class Scored(NamedTuple):
  """A batch on the host: P groups, what they answer and what they were given."""

  examples: list[Example | None]  # [P]
  completions: list[list[Completion]]  # [P][G]
  rollouts: Rollouts  # numpy, with rewards
  faults: list[combine.Fault]


class Collector(NamedTuple):
  """Where batches come from and how they are scored. Only the position in `batches` and `generator.sizes` change."""

  batches: Iterator[list[Example | None]]
  generator: Generator
  rewards: Sequence[tuple[str, Callable, float]]  # name, function, weight
  flat: Callable[[Rollouts], Any]  # which groups teach nothing, [P] bool
  on_error: float  # what a reward that fails counts
  deadline: float  # seconds that a reward may take
  max_length: int  # L
  prompts: int  # P
  tries: int  # above 1: dynamic sampling, see `collect`


def make_collector(config: ConfigDict, model: build.Model) -> Collector:
  """What samples and scores batches of the training data.

  Raises:
    SettingError: data or rewards that are not there, a reward that cannot work as it is set, sampler settings that
      cannot be.
  """
  d, s, objective = config.data, config.sampler, imports.objective(config.objective.name)
  batches, rewards = build.batches(config, model), imports.rewards(config.rewards)
  for _, reward, _ in rewards:  # it may fail on a solution, and still work on samples: only SettingError ends the run
    checks.try_reward(reward, batches.first(checks.FIRST_SOLUTIONS), model, config)
  sample, sizes = sampler.make_sampler(model.decoder, s, model.stop), build.sizes(config, model.layout)
  return Collector(
    batches=batches,
    generator=Generator(sample, sizes, model.tokenizer, model.render, d.max_prompt_length, d.on_long),
    rewards=rewards,
    flat=jitted_flat(objective, imports.objective_settings(config.objective)),
    on_error=config.rewards.on_error,
    deadline=config.rewards.deadline,
    max_length=s.max_length,
    prompts=d.prompts,
    tries=s.tries,
  )


@functools.cache
def jitted_flat(objective: Objective, settings: FrozenConfigDict) -> Callable[[Rollouts], Any]:
  """The objective's `flat`, jitted: the same function for the same settings, so that it is compiled once."""
  return jax.jit(functools.partial(objective.flat, cfg=settings))


def collect(
  collector: Collector, params: Any, key: jax.Array, writer: metrics.Writer
) -> tuple[Scored, dict[str, float]]:
  """One batch to learn from, sampled from the policy `params`, and metrics of everything that was sampled.

  With more than one try this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): flat groups, which teach
  nothing, are dropped and more prompts are sampled until there are P groups, or that often; what is then missing is
  filled with empty groups, which count in no denominator.
  """
  c, sampled, flat, kept, statistics = collector, [], [], [], []
  for attempt in range(c.tries):
    with writer.phase("sample"):
      examples = next(c.batches)
      rollouts, found = generate(c.generator, params, examples, jax.random.fold_in(key, attempt))
    with writer.phase("score"):
      texts = completions(c.generator, rollouts)
      sampled.append(score(c, examples, texts, rollouts))
      flat.append(np.asarray(c.flat(sampled[-1].rollouts)))
    for fault in sampled[-1].faults:
      writer.warn(
        f"reward {fault.name}",
        f"the reward {fault.name!r} failed: {fault.message}; it counts as rewards.on_error={c.on_error:g} there, and "
        "reward_faults counts how often",
      )
    statistics.append(found)
    kept.append(sampled[-1] if c.tries == 1 else varied(sampled[-1], flat[-1]))
    if sum(len(batch.examples) for batch in kept) >= c.prompts:
      break
  batch = kept[0] if c.tries == 1 else fill(kept, c.prompts)
  sampling = {
    "prompts_too_long": sum(found["prompts_too_long"] for found in statistics),
    "slot_use": float(np.mean([float(found["slot_use"]) for found in statistics])),
    "sampling_tries": len(statistics),
  }
  return batch, sampling | reward_metrics(sampled, flat, [name for name, _, _ in c.rewards])


def score(
  collector: Collector, examples: list[Example | None], texts: list[list[Completion]], rollouts: Rollouts
) -> Scored:
  """The batch with the rewards of every completion.

  On several hosts the first one scores: a reward may be late, or fail, on one of them alone.

  Raises:
    SettingError: see `combine.score`; on every host.
  """
  c, error, scores = collector, None, combine.nothing(rollouts.tokens.shape, len(collector.rewards))
  if jax.process_index() == 0:
    try:
      scores = combine.score(c.rewards, examples, texts, c.max_length, c.on_error, c.deadline)
    except SettingError as cause:
      error = cause
  if said := hosts.text_of_process_0(str(error or "")):
    raise error or SettingError(said)
  rewards, given, components = hosts.arrays_of_process_0(scores[:3])
  rollouts = dataclasses.replace(rollouts, rewards=rewards, given=given, components=components)
  return Scored(list(examples), texts, rollouts, scores.faults)


def reward_metrics(batches: Sequence[Scored], flat: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, float]:
  """Metrics of everything that was sampled, groups that only fill a batch left out.

  `tokens`, `reward_faults`; mean and standard deviation of the total reward; the mean of each reward component;
  `zero_variance`, the share of flat groups; `cut_off_nats`, what top-k, top-p and min-p cut off: the mean, over tokens,
  of -log of the mass that they kept.

  Args:
    batches: what was sampled.
    flat: which groups of each are flat, [P] bool.
    names: of the reward components, N.
  """
  real = [batch.rollouts.given.any(axis=2) for batch in batches]  # [P, G] each, completions that were given a reward
  total = np.concatenate([totals(b.rollouts.rewards, b.rollouts.given)[r] for b, r in zip(batches, real)])
  components = np.concatenate([batch.rollouts.components[r] for batch, r in zip(batches, real)])  # [completions, N]
  alike = np.concatenate([of[batch.rollouts.prompts.lengths > 0] for batch, of in zip(batches, flat)])
  tokens = sum(int(batch.rollouts.lengths.sum()) for batch in batches)
  numbers = {
    "tokens": tokens,
    "reward_faults": sum(len(batch.faults) for batch in batches),
    "zero_variance": float(np.mean(alike)) if alike.size else 0.0,
  }
  if tokens:  # both log-probs are 0 where there is no token
    cut_off = sum((b.rollouts.truncated_logprobs - b.rollouts.sampler_logprobs).sum() for b in batches)
    numbers["cut_off_nats"] = cut_off / tokens
  if not total.size:
    return numbers
  numbers |= {"reward/mean": total.mean(), "reward/std": total.std()}
  for n, name in enumerate(names):
    given = components[:, n][~np.isnan(components[:, n])]  # a reward that returned None gave none
    numbers[f"reward/{name}"] = given.mean() if given.size else float("nan")
  return numbers


def select(batch: Scored, keep: Sequence[int]) -> Scored:
  """The groups of those indices, in that order."""
  at = {old: new for new, old in enumerate(keep)}
  faults = [fault._replace(prompt=at[fault.prompt]) for fault in batch.faults if fault.prompt in at]
  index = np.asarray(keep, np.int32)
  rollouts = jax.tree.map(lambda x: x[index], batch.rollouts)
  return Scored([batch.examples[i] for i in keep], [batch.completions[i] for i in keep], rollouts, faults)


def varied(batch: Scored, flat: np.ndarray) -> Scored:
  """The groups that were sampled and are not `flat` ([P] bool)."""
  return select(batch, np.flatnonzero(~flat & (batch.rollouts.prompts.lengths > 0)).tolist())


def widen(rollouts: Rollouts, width: int) -> Rollouts:
  """Rollouts with prompts padded to `width`."""
  prompts = rollouts.prompts
  tokens = np.pad(prompts.tokens, [(0, 0), (0, width - prompts.tokens.shape[1])])
  return dataclasses.replace(rollouts, prompts=Prompts(tokens, prompts.lengths))


def fill(batches: Sequence[Scored], prompts: int) -> Scored:
  """The first `prompts` groups of several batches; empty groups where there are fewer."""
  width = max(batch.rollouts.prompts.tokens.shape[1] for batch in batches)
  examples = [example for batch in batches for example in batch.examples]
  completions = [group for batch in batches for group in batch.completions]
  starts = np.cumsum([0] + [len(batch.examples) for batch in batches])
  faults = [f._replace(prompt=int(f.prompt + start)) for batch, start in zip(batches, starts) for f in batch.faults]
  rollouts = jax.tree.map(lambda *x: np.concatenate(x), *[widen(batch.rollouts, width) for batch in batches])
  missing = prompts - len(examples)
  if missing <= 0:
    joined = Scored(examples, completions, rollouts, faults)
    return select(joined, range(prompts))
  rollouts = jax.tree.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), rollouts)
  group = rollouts.lengths.shape[1]
  empty = [[Completion("", [], 0, [])] * group for _ in range(missing)]
  return Scored(examples + [None] * missing, completions + empty, rollouts, faults)
