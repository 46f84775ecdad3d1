"""A batch to learn from: sampled, scored and, with dynamic sampling, chosen."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax import metrics
from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.loops import build
from grpo_jax.rewards import combine
from grpo_jax.types import Completion, Example, Rollouts


class Scored(NamedTuple):
  """A batch on the host: P groups, what they answer and what they were given."""

  rows: list[Example | None]  # [P]
  completions: list[list[Completion]]  # [P][G]
  rollouts: Rollouts  # numpy, with rewards
  faults: list[combine.Fault]


def collect(
  batches: Iterator[list[Example | None]],
  sample: Callable,
  params: Any,
  key: jax.Array,
  model: build.Model,
  functions: Sequence[tuple],
  config: ConfigDict,
  writer: metrics.Writer,
  whole: bool = False,
) -> tuple[Scored, dict[str, float]]:
  """One batch to learn from.

  With `sampler.tries` above 1 this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): groups whose rewards are
  all equal are dropped and more prompts are sampled until there are P groups, or that often; what is then missing
  is filled with empty rows, which count in no denominator. `whole` keeps prompts at their full width.
  """
  wanted, tries = config.data.prompts, config.sampler.tries
  kept, long, tokens, use = [], 0, 0, []
  for attempt in range(tries):
    with writer.phase("sample"):
      rows = next(batches)
      prompts, too_long = loader.to_prompts(rows, model.render, config.data.max_prompt_length, config.data.on_long)
      prompts = host.to_device(model.layout, prompts if tries > 1 or whole else host.trim(prompts))
      sampled, statistics = host.to_host(sample(params, prompts, jax.random.fold_in(key, attempt)))
    with writer.phase("score"):
      completions = host.completions(sampled, model.tokenizer)
      scores = combine.score(functions, rows, completions, config.sampler.max_length, config.rewards.on_error)
      sampled = dataclasses.replace(sampled, rewards=scores.rewards, given=scores.given, parts=scores.parts)
    long, tokens = long + too_long, tokens + int(sampled.lengths.sum())
    use.append(float(statistics["slot_use"]))
    batch = Scored(list(rows), completions, sampled, scores.faults)
    kept.append(batch if tries == 1 else varied(batch))
    if sum(len(b.rows) for b in kept) >= wanted:
      break
  batch = kept[0] if tries == 1 else fill(kept, wanted)
  sampling = {"prompts_too_long": long, "tokens": tokens, "slot_use": float(np.mean(use)), "sampling_tries": len(use)}
  return batch, sampling


def select(batch: Scored, keep: Sequence[int]) -> Scored:
  """The groups of those indices."""
  at = {old: new for new, old in enumerate(keep)}
  faults = [f._replace(prompt=at[f.prompt]) for f in batch.faults if f.prompt in at]
  index = np.asarray(keep, np.int32)
  rollouts = jax.tree.map(lambda x: x[index], batch.rollouts)
  return Scored([batch.rows[i] for i in keep], [batch.completions[i] for i in keep], rollouts, faults)


def varied(batch: Scored) -> Scored:
  """The groups whose completions were not all given the same rewards."""
  r = batch.rollouts
  keep = []
  for p in range(len(batch.rows)):
    given = r.rewards[p][r.given[p]]
    if given.size and given.max() > given.min():
      keep.append(p)
  return select(batch, keep)


def fill(parts: Sequence[Scored], prompts: int) -> Scored:
  """The first `prompts` groups of several batches; empty rows where there are fewer."""
  rows = [row for b in parts for row in b.rows]
  completions = [group for b in parts for group in b.completions]
  starts = np.cumsum([0] + [len(b.rows) for b in parts])
  faults = [f._replace(prompt=int(f.prompt + start)) for b, start in zip(parts, starts) for f in b.faults]
  rollouts = jax.tree.map(lambda *x: np.concatenate(x), *[b.rollouts for b in parts])
  missing = prompts - len(rows)
  if missing <= 0:
    joined = Scored(rows, completions, rollouts, faults)
    return select(joined, range(prompts))
  rollouts = jax.tree.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), rollouts)
  group = rollouts.lengths.shape[1]
  empty = [[Completion("", [], 0, [])] * group for _ in range(missing)]
  return Scored(rows + [None] * missing, completions + empty, rollouts, faults)
