"""Sample, score, learn: GRPO and every objective that trains on the live policy's own samples."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax import learn, metrics, sampler
from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.loops import build, imports
from grpo_jax.loops.session import Session
from grpo_jax.rewards import combine
from grpo_jax.types import Completion, Example, Rollouts


class Scored(NamedTuple):
  """A batch on the host: P groups, what they answer and what they were given."""

  rows: list[Example | None]  # [P]
  completions: list[list[Completion]]  # [P][G]
  rollouts: Rollouts  # numpy, with rewards
  faults: list[combine.Fault]


def run(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Session`."""
  model = build.model(config)
  functions = imports.rewards(config.rewards)
  batches = build.batches(config)
  sample = sampler.make_sampler(model.decoder, config.sampler, model.stop)
  layout = model.layout

  with Session(config, workdir, model, batches) as s:
    for step in s.steps():
      key = build.key(config.seed, build.SAMPLE, step)
      batch, sampling = collect(batches, sample, s.policy, key, model, functions, config, s.writer)
      packing = host.pack(batch.rollouts.lengths, config.sampler.max_length, layout.size("sample"))
      rollouts, take = host.to_device(layout, (batch.rollouts, packing))
      with s.writer.phase("learn"):
        s.state, learned, trace = s.update(s.state, s.ref_params, None, rollouts, take)
        learned = host.to_host(learned)
      if config.log.report_every and step % config.log.report_every == 0:
        with s.writer.phase("report"):
          learned |= host.to_host(s.report(s.state.params, rollouts, trace, take))
      numbers = learned | host.statistics(batch.rollouts, packing) | reward_metrics(batch, functions) | sampling
      numbers |= speeds(numbers["tokens"], int(batch.rollouts.lengths.sum()), s.writer.seconds)
      s.writer.samples(step + 1, sample_rows(batch, trace, config.log.samples, functions))
      s.log(step, numbers)


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


def speeds(sampled: int, learned: int, seconds: dict[str, float]) -> dict[str, float]:
  """Completion tokens a second of each phase and of the step."""
  whole = sum(seconds[phase] for phase in ("sample", "score", "learn"))
  return {
    "tokens_per_s/sample": sampled / seconds["sample"],
    "tokens_per_s/learn": learned / seconds["learn"],
    "tokens_per_s/step": learned / whole,
  }


def reward_metrics(batch: Scored, functions: Sequence[tuple]) -> dict[str, float]:
  """Mean and spread of the total reward and the mean of each of its parts, over the completions of a batch."""
  r = batch.rollouts
  real = r.lengths > 0
  total = np.where(r.given, r.rewards, 0.0).sum(2)[real]
  if not total.size:
    return {"reward_faults": len(batch.faults)}
  return {
    "reward/mean": total.mean(),
    "reward/std": total.std(),
    "reward_faults": len(batch.faults),
    **{f"reward/{name}": r.parts[real][:, n].mean() for n, (name, _, _) in enumerate(functions)},
  }


def sample_rows(batch: Scored, trace: learn.Trace, limit: int, functions: Sequence[tuple]) -> list[dict[str, Any]]:
  """Completions of a batch as samples.jsonl keeps them: those with a fault first, then one of each group in turn."""
  r, advantages = batch.rollouts, host.to_host(trace.advantages)
  faults = {(f.prompt, f.sample): f"{f.name}: {f.message}" for f in batch.faults}
  group = range(r.lengths.shape[1])
  places = [(p, g) for g in group for p in range(len(batch.rows)) if batch.completions[p][g].tokens]
  out = []
  for p, g in sorted(places, key=lambda place: place not in faults)[:limit]:
    completion = batch.completions[p][g]
    row = {
      "question": batch.rows[p].question,
      "completion": completion.text,
      "answer": batch.rows[p].answer,
      "reward": r.rewards[p, g][r.given[p, g]].sum(),
      "advantage": advantages[p, g, : len(completion.tokens)].mean(),
      "rewards": {name: r.parts[p, g, n] for n, (name, _, _) in enumerate(functions)},
      "ended": "stopped" if completion.ended else "truncated",
    }
    out.append(row | ({"faults": faults[p, g]} if (p, g) in faults else {}))
  return out
