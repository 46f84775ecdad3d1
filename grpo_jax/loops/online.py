"""Sample, score, learn: GRPO and every objective that trains on the live policy's own samples."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax import learn, sampler
from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.loops import build, imports
from grpo_jax.loops.session import Session
from grpo_jax.rewards import combine
from grpo_jax.types import Rollouts


def run(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Session`."""
  model = build.model(config)
  functions = imports.rewards(config.rewards)
  batches = build.batches(config)
  sample = sampler.make_sampler(model.decoder, config.sampler, model.stop)
  length, layout = config.sampler.max_length, model.layout

  with Session(config, workdir, model, batches) as s:
    for step in s.steps():
      with s.writer.phase("sample"):
        rows = next(batches)
        prompts, long = loader.to_prompts(rows, model.render, config.data.max_prompt_length, config.data.on_long)
        prompts = host.to_device(layout, host.trim(prompts))
        key = build.key(config.seed, build.SAMPLE, step)
        rollouts, statistics = jax.block_until_ready(sample(s.policy, prompts, key))
      with s.writer.phase("score"):
        sampled = host.to_host(rollouts)
        completions = host.completions(sampled, model.tokenizer)
        scores = combine.score(functions, rows, completions, length, config.rewards.on_error)
        rollouts = host.with_rewards(rollouts, scores.rewards, scores.given, scores.parts, layout)
        packing = host.pack(sampled.lengths, length, layout.size("sample"))
        take = None if packing is None else host.to_device(layout, packing)
      with s.writer.phase("learn"):
        s.state, learned, trace = s.update(s.state, s.ref_params, None, rollouts, take)
        learned = host.to_host(learned)
      if config.log.report_every and step % config.log.report_every == 0:
        with s.writer.phase("report"):
          learned |= host.to_host(s.report(s.state.params, rollouts, trace, take))
      numbers = learned | host.statistics(sampled, packing) | reward_metrics(scores, sampled, functions)
      numbers |= {"prompts_too_long": long, "slot_use": statistics["slot_use"]}
      numbers |= speeds(int(sampled.lengths.sum()), s.writer.seconds)
      s.writer.samples(step, sample_rows(rows, completions, scores, trace, config.log.samples, functions))
      s.log(step, numbers)


def speeds(tokens: int, seconds: dict[str, float]) -> dict[str, float]:
  """Completion tokens a second of each phase and of the step."""
  whole = sum(seconds[phase] for phase in ("sample", "score", "learn"))
  return {
    "tokens": tokens,
    "tokens_per_s/sample": tokens / seconds["sample"],
    "tokens_per_s/learn": tokens / seconds["learn"],
    "tokens_per_s/step": tokens / whole,
  }


def reward_metrics(scores: combine.Scores, sampled: Rollouts, functions: Sequence[tuple]) -> dict[str, float]:
  """Mean and spread of the total reward and the mean of each of its parts, over the completions of a batch."""
  real = sampled.lengths > 0
  total = np.where(scores.given, scores.rewards, 0.0).sum(2)[real]
  parts = scores.parts[real]
  if not total.size:
    return {"reward_faults": len(scores.faults)}
  return {
    "reward/mean": total.mean(),
    "reward/std": total.std(),
    "reward_faults": len(scores.faults),
    **{f"reward/{name}": parts[:, n].mean() for n, (name, _, _) in enumerate(functions)},
  }


def sample_rows(
  rows: Sequence[Any],
  completions: Sequence[Sequence[Any]],
  scores: combine.Scores,
  trace: learn.Trace,
  limit: int,
  functions: Sequence[tuple],
) -> list[dict[str, Any]]:
  """Completions of a batch as samples.jsonl keeps them: those with a fault first, then one of each group in turn."""
  advantages = host.to_host(trace.advantages)
  faults = {(f.prompt, f.sample): f"{f.name}: {f.message}" for f in scores.faults}
  places = [(p, g) for g in range(len(completions[0])) for p in range(len(rows)) if completions[p][g].tokens]
  out = []
  for p, g in sorted(places, key=lambda place: place not in faults)[:limit]:
    completion = completions[p][g]
    row = {
      "question": rows[p].question,
      "completion": completion.text,
      "answer": rows[p].answer,
      "reward": scores.rewards[p, g][scores.given[p, g]].sum(),
      "advantage": advantages[p, g, : len(completion.tokens)].mean(),
      "rewards": {name: scores.parts[p, g, n] for n, (name, _, _) in enumerate(functions)},
      "ended": "stopped" if completion.ended else "truncated",
    }
    out.append(row | ({"faults": faults[p, g]} if (p, g) in faults else {}))
  return out
