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
from grpo_jax.types import Completion, Example, Prompts, Rollouts


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
) -> tuple[Scored, dict[str, float]]:
  """One batch to learn from.

  With `sampler.tries` above 1 this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): groups whose rewards are
  all equal (under GDPO each of them) are dropped and more prompts are sampled until there are P groups, or that often;
  what is then missing is filled with empty rows, which count in no denominator. Numbers are of everything sampled.
  """
  separate = config.objective.reward_combination == "gdpo"
  wanted, tries = config.data.prompts, config.sampler.tries
  every, kept, long, use = [], [], 0, []
  for attempt in range(tries):
    with writer.phase("sample"):
      rows = next(batches)
      prompts, too_long = loader.to_prompts(rows, model.render, config.data.max_prompt_length, config.data.on_long)
      sampled, statistics = host.draw(sample, params, prompts, jax.random.fold_in(key, attempt), model.layout)
    with writer.phase("score"):
      completions = host.completions(sampled, model.tokenizer)
      scores = combine.score(functions, rows, completions, config.sampler.max_length, config.rewards.on_error)
      sampled = dataclasses.replace(sampled, rewards=scores.rewards, given=scores.given, parts=scores.parts)
    long += too_long
    use.append(float(statistics["slot_use"]))
    every.append(Scored(list(rows), completions, sampled, scores.faults))
    kept.append(every[-1] if tries == 1 else varied(every[-1], separate))
    if sum(len(b.rows) for b in kept) >= wanted:
      break
  batch = kept[0] if tries == 1 else fill(kept, wanted)
  sampling = {"prompts_too_long": long, "slot_use": float(np.mean(use)), "sampling_tries": len(use)}
  return batch, sampling | reward_metrics(every, functions, separate)


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
