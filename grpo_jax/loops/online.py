"""Sample, score, learn: GRPO and every objective that trains on the live policy's own samples."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from grpo_jax import learn, sampler
from grpo_jax import rollouts as host
from grpo_jax.loops import build, imports
from grpo_jax.loops.collect import Scored, collect
from grpo_jax.loops.session import Session
from grpo_jax.tokenizer.reading import Tokenizer


def run(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Session`."""
  model = build.model(config)
  functions = imports.rewards(config.rewards)
  batches = build.batches(config)
  sample = sampler.make_sampler(model.decoder, config.sampler, model.stop)
  layout, parts = model.layout, learn.parts(config.learner, config.data.prompts)

  with Session(config, workdir, model, batches) as s:
    for step in s.steps():
      key = build.key(config.seed, build.SAMPLE, step)
      batch, sampling = collect(batches, sample, s.policy, key, model, functions, config, s.writer)
      packing = host.pack(batch.rollouts, layout, parts)
      rollouts, placed = host.to_device(layout, (batch.rollouts, packing))
      with s.writer.phase("learn"):
        s.state, learned, trace = s.update(s.state, s.ref_params, None, rollouts, placed)
        learned = host.to_host(learned)
      report, moved = s.report(step, rollouts, trace, placed)
      numbers = learned | report | host.statistics(batch.rollouts, packing, layout, parts) | sampling
      numbers |= speeds(numbers["tokens"], int(batch.rollouts.lengths.sum()), s.writer.seconds)
      s.writer.samples(step + 1, sample_rows(batch, trace, moved, config.log.samples, functions, model.tokenizer))
      s.log(step, numbers)


def speeds(sampled: int, learned: int, seconds: dict[str, float]) -> dict[str, float]:
  """Completion tokens a second of each phase and of the step."""
  whole = sum(seconds[phase] for phase in ("sample", "score", "learn"))
  return {
    "tokens_per_s/sample": sampled / seconds["sample"],
    "tokens_per_s/learn": learned / seconds["learn"],
    "tokens_per_s/step": learned / whole,
  }


def sample_rows(
  batch: Scored, trace: learn.Trace, moved: Any, limit: int, functions: Sequence[tuple], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
  """Completions of a batch as samples.jsonl keeps them: those with a fault first, then one of each group in turn.

  `moved`: the sequences' log-probs before and after the update, or None where it was not reported.
  """
  r, (advantages, logprobs) = batch.rollouts, host.to_host((trace.advantages, trace.logprobs))
  faults = {(f.prompt, f.sample): f"{f.name}: {f.message}" for f in batch.faults}
  group = range(r.lengths.shape[1])
  places = [(p, g) for g in group for p in range(len(batch.rows)) if batch.completions[p][g].tokens]
  out = []
  for p, g in sorted(places, key=lambda place: place not in faults)[:limit]:
    completion = batch.completions[p][g]
    real = (p, g, slice(len(completion.tokens)))
    row = {
      "question": batch.rows[p].question,
      "completion": completion.text,
      "answer": batch.rows[p].answer,
      "reward": r.rewards[p, g][r.given[p, g]].sum(),
      "advantage": advantages[real].mean(),
      "rewards": {name: r.parts[p, g, n] for n, (name, _, _) in enumerate(functions)},
      "ended": "stopped" if completion.ended else "truncated",
      "tokens": [tokenizer.text(token) for token in completion.tokens],
      "advantages": [round(float(x), 4) for x in advantages[real]],
      "logprobs": [round(float(x), 4) for x in logprobs[real]],
    }
    if moved:
      row |= {"logprob_before": round(float(moved[0][p, g]), 4), "logprob_after": round(float(moved[1][p, g]), 4)}
    out.append(row | ({"faults": faults[p, g]} if (p, g) in faults else {}))
  return out
