"""Sample, score, learn: GRPO and every objective that trains on the live policy's own samples."""

from typing import Any

from ml_collections import ConfigDict

from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.loops.collect import Collector, collect, disagreement, make_collector
from grpo_jax.loops.groups import Scored
from grpo_jax.loops.learner import Learned, Learner
from grpo_jax.loops.run import Run
from grpo_jax.ops.advantages import totals
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, registry
from grpo_jax.types import STOPPED


def train(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  model = build.model(config)
  checks.check(config, model.decoder, registry.objective(config.objective.name))
  collector = make_collector(config, model)
  policy = Learner(config, model, config.sampler.temperature, collector.generator.sizes)
  evaluator = Evaluator(config, model, lambda: collector.models)

  with Run(
    config, workdir, model, collector.batches, {"policy": policy}, evaluator, collector.rule
  ) as run:
    for step in run.steps():
      key = build.key(config.seed, build.SAMPLE, step)
      batch, sampling = collect(collector, policy.params, key, run.writer)  # sample and score
      learned = policy.learn(step, batch.rollouts, run.writer)  # mu updates, one jitted function
      numbers = learned.metrics | sampling
      numbers |= speeds(numbers["tokens"], int(batch.rollouts.lengths.sum()), run.writer.seconds)
      run.writer.samples(
        step + 1, sample_rows(batch, learned, config.log.samples, collector, model)
      )
      run.log(step, numbers)
      run.after(step)
    run.finish()


def speeds(sampled: int, learned: int, seconds: dict[str, float]) -> dict[str, float]:
  """Completion tokens a second: of sampling, of learning and of the whole step; and the share of it
  that scoring takes.

  Args:
    sampled, learned: tokens of completions.
    seconds: of the phases of the step. That of scoring ends when all rewards are on the host,
      reward models' too.
  """
  whole = sum(seconds[phase] for phase in ("sample", "score", "learn"))
  return {
    "tokens_per_s/sample": sampled / seconds["sample"],
    "tokens_per_s/learn": learned / seconds["learn"],
    "tokens_per_s/step": learned / whole,
    "time/score_share": seconds["score"] / whole,
  }


def sample_rows(
  batch: Scored, learned: Learned, limit: int, collector: Collector, model: build.Model
) -> list[dict[str, Any]]:
  """Up to `limit` completions as samples.jsonl keeps them: those with a fault first, then one of
  each group in turn.
  """
  r, trace = batch.rollouts, learned.trace
  faults = {
    (fault.prompt, fault.sample): f"{fault.name}: {fault.message}" for fault in batch.faults
  }
  group = range(r.lengths.shape[1])
  real = [(p, g) for g in group for p in range(len(batch.examples)) if r.lengths[p, g]]
  shown = sorted(real, key=lambda place: place not in faults)[:limit]
  if not shown:
    return []
  places = [*shown, *shown[:1] * (limit - len(shown))]  # always as many: one program
  tokens, advantages, logprobs = rollouts.rows(
    model.layout, (r.tokens, trace.advantages, trace.logprobs), places
  )
  total, apart = totals(r.rewards, r.given), disagreement(batch, collector)
  out = []
  for n, (p, g) in enumerate(shown):
    ids, text = rollouts.written(tokens[n], r.lengths[p, g], r.ended[p, g], model.tokenizer)
    real = slice(len(ids))
    row = {
      "question": batch.examples[p].question,
      "completion": text,
      "answer": batch.examples[p].answer,
      "reward": total[p, g],
      "advantage": advantages[n, real].mean(),
      "rewards": {name: r.components[p, g, i] for i, name in enumerate(collector.names)},
      "ended": "stopped" if r.ended[p, g] == STOPPED else "truncated",
      "tokens": [model.tokenizer.text(token) for token in ids],
      "advantages": [round(float(x), 4) for x in advantages[n, real]],
      "logprobs": [round(float(x), 4) for x in logprobs[n, real]],
    }
    if apart is not None:
      row["disagreement"] = apart[p, g]
    if learned.moved:
      before, after = learned.moved
      row |= {
        "logprob_before": round(float(before[p, g]), 4),
        "logprob_after": round(float(after[p, g]), 4),
      }
    out.append(row | ({"faults": faults[p, g]} if (p, g) in faults else {}))
  return out
