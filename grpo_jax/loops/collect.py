"""A batch to learn from: sampled, scored and, with dynamic sampling, chosen."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax import metrics, sampler
from grpo_jax.generate import Generator, completions, generate
from grpo_jax.loops import build, imports
from grpo_jax.rewards import combine
from grpo_jax.types import Completion, Example, Prompts, Rollouts


class Scored(NamedTuple):
  """A batch on the host: P groups, what they answer and what they were given."""

  examples: list[Example | None]  # [P]
  completions: list[list[Completion]]  # [P][G]
  rollouts: Rollouts  # numpy, with rewards
  faults: list[combine.Fault]


class Collector(NamedTuple):
  """Where batches come from and how they are scored. Only the position in `batches` changes during a run."""

  batches: Iterator[list[Example | None]]
  generator: Generator
  rewards: Sequence[tuple[str, Callable, float]]  # name, function, weight
  on_error: float  # what a reward that fails counts
  max_length: int  # L
  prompts: int  # P
  tries: int  # above 1: dynamic sampling, see `collect`


def make_collector(config: ConfigDict, model: build.Model) -> Collector:
  """What samples and scores batches of the training data.

  Raises:
    SettingError: data or rewards that are not there, sampler settings that cannot be.
  """
  d, s = config.data, config.sampler
  sample = sampler.make_sampler(model.decoder, s, model.stop)
  return Collector(
    batches=build.batches(config),
    generator=Generator(sample, model.layout, model.tokenizer, model.render, d.max_prompt_length, d.on_long),
    rewards=imports.rewards(config.rewards),
    on_error=config.rewards.on_error,
    max_length=s.max_length,
    prompts=d.prompts,
    tries=s.tries,
  )


def collect(
  collector: Collector, params: Any, key: jax.Array, writer: metrics.Writer
) -> tuple[Scored, dict[str, float]]:
  """One batch to learn from, sampled from the policy `params`, and metrics of everything that was sampled.

  With more than one try this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): groups whose completions were
  all given the same rewards are dropped and more prompts are sampled until there are P groups, or that often; what is
  then missing is filled with empty groups, which count in no denominator.
  """
  c, sampled, kept, statistics = collector, [], [], []
  for attempt in range(c.tries):
    with writer.phase("sample"):
      examples = next(c.batches)
      rollouts, found = generate(c.generator, params, examples, jax.random.fold_in(key, attempt))
    with writer.phase("score"):
      texts = completions(c.generator, rollouts)
      sampled.append(score(c, examples, texts, rollouts))
    statistics.append(found)
    kept.append(sampled[-1] if c.tries == 1 else varied(sampled[-1]))
    if sum(len(batch.examples) for batch in kept) >= c.prompts:
      break
  batch = kept[0] if c.tries == 1 else fill(kept, c.prompts)
  sampling = {
    "prompts_too_long": sum(found["prompts_too_long"] for found in statistics),
    "slot_use": float(np.mean([float(found["slot_use"]) for found in statistics])),
    "sampling_tries": len(statistics),
  }
  return batch, sampling | reward_metrics(sampled, [name for name, _, _ in c.rewards])


def score(
  collector: Collector, examples: list[Example | None], texts: list[list[Completion]], rollouts: Rollouts
) -> Scored:
  """The batch with the rewards of every completion."""
  scores = combine.score(collector.rewards, examples, texts, collector.max_length, collector.on_error)
  rollouts = dataclasses.replace(rollouts, rewards=scores.rewards, given=scores.given, parts=scores.parts)
  return Scored(list(examples), texts, rollouts, scores.faults)


def reward_metrics(batches: Sequence[Scored], functions: Sequence[tuple], separate: bool = False) -> dict[str, float]:
  """Of what was sampled, without rows that only fill the batch: tokens, mean and spread of the total reward, the mean
  of each of its parts, the share of groups whose rewards are all equal, and what top-k, top-p and
  min-p cut off: the mean, over tokens, of -log of the mass that they kept."""
  join = lambda of: np.concatenate([of(b.rollouts)[b.rollouts.lengths > 0] for b in batches])
  total = join(totals)
  parts = join(lambda r: r.parts)
  flat = [flat for b in batches for flat, n in zip(flat_groups(b, separate), b.rollouts.prompts.lengths) if n]
  numbers = {
    "tokens": sum(int(b.rollouts.lengths.sum()) for b in batches),
    "reward_faults": sum(len(b.faults) for b in batches),
    "zero_variance_groups": float(np.mean(flat)) if flat else 0.0,
  }
  if not total.size:
    return numbers
  cut_off = sum((b.rollouts.truncated_logprobs - b.rollouts.sampler_logprobs).sum() for b in batches)  # 0 on padding
  numbers |= {"reward/mean": total.mean(), "reward/std": total.std(), "cut_off_nats": cut_off / numbers["tokens"]}
  return numbers | {f"reward/{name}": parts[:, n].mean() for n, (name, _, _) in enumerate(functions)}


def totals(r: Rollouts) -> np.ndarray:
  """[P, G] float32, the rewards of each completion added up, whatever their order."""
  return np.where(r.given, r.rewards, 0.0).sum(2, dtype=np.float64).astype(np.float32)


def flat_groups(batch: Scored, separate: bool = False) -> list[bool]:
  """[P] whether all rewards of a group are equal; `separate`: each of several rewards, not their sum."""
  r = batch.rollouts
  if separate:
    return [bool((parts == parts[:1]).all()) for parts in r.parts]
  given = [r.rewards[p][r.given[p]] for p in range(len(batch.rows))]
  return [not (values.size and values.max() > values.min()) for values in given]


def select(batch: Scored, keep: Sequence[int]) -> Scored:
  """The groups of those indices."""
  at = {old: new for new, old in enumerate(keep)}
  faults = [f._replace(prompt=at[f.prompt]) for f in batch.faults if f.prompt in at]
  index = np.asarray(keep, np.int32)
  rollouts = jax.tree.map(lambda x: x[index], batch.rollouts)
  return Scored([batch.rows[i] for i in keep], [batch.completions[i] for i in keep], rollouts, faults)


def varied(batch: Scored, separate: bool = False) -> Scored:
  """The groups whose completions were not all given the same rewards; see `flat_groups`."""
  return select(batch, [p for p, flat in enumerate(flat_groups(batch, separate)) if not flat])


def widen(rollouts: Rollouts, width: int) -> Rollouts:
  """Rollouts with prompts padded to `width`."""
  prompts = rollouts.prompts
  tokens = np.pad(prompts.tokens, [(0, 0), (0, width - prompts.tokens.shape[1])])
  return dataclasses.replace(rollouts, prompts=Prompts(tokens, prompts.lengths))


def fill(parts: Sequence[Scored], prompts: int) -> Scored:
  """The first `prompts` groups of several batches; empty rows where there are fewer."""
  width = max(b.rollouts.prompts.tokens.shape[1] for b in parts)
  rows = [row for b in parts for row in b.rows]
  completions = [group for b in parts for group in b.completions]
  starts = np.cumsum([0] + [len(b.rows) for b in parts])
  faults = [f._replace(prompt=int(f.prompt + start)) for b, start in zip(parts, starts) for f in b.faults]
  rollouts = jax.tree.map(lambda *x: np.concatenate(x), *[widen(b.rollouts, width) for b in parts])
  missing = prompts - len(rows)
  if missing <= 0:
    joined = Scored(rows, completions, rollouts, faults)
    return select(joined, range(prompts))
  rollouts = jax.tree.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), rollouts)
  group = rollouts.lengths.shape[1]
  empty = [[Completion("", [], 0, [])] * group for _ in range(missing)]
  return Scored(rows + [None] * missing, completions + empty, rollouts, faults)
