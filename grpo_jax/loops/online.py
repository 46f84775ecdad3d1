"""Sample, score, learn: GRPO and every objective that trains on the live policy's own samples."""

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.loops import teacher_prompts
from grpo_jax.loops.carried import warn_of_stale
from grpo_jax.loops.collect import Collector, collect, make_collector
from grpo_jax.loops.groups import Scored
from grpo_jax.loops.learner import Learned, Learner
from grpo_jax.loops.protocols import Trained
from grpo_jax.loops.reference import Policy, Reference
from grpo_jax.loops.run import Run
from grpo_jax.loops.sample_metrics import disagreement
from grpo_jax.ops.advantages import totals
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, weights
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import STOPPED


def train(experiment: Experiment, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  teacher_prompts.check(experiment)
  model = build.model(experiment)
  checks.check(experiment, model.decoder)
  collector = make_collector(experiment, model)
  ema = experiment.reference.ema
  policy = (Policy if ema else Learner)(
    experiment, model, experiment.sampler.temperature, collector.generator.sizes
  )
  learners: dict[str, Trained] = {"policy": policy}
  if ema:
    reference = learners[weights.REFERENCE] = Reference(policy)
  evaluator = Evaluator(experiment, model, lambda: collector.models)

  with Run(experiment, workdir, model, collector.data, learners, evaluator, collector.rule) as run:
    if collector.carrier:
      warn_of_stale(experiment.objective, run.writer)
    for step in run.steps():
      if ema:
        policy.ref_params = reference.trained
      key = build.key(experiment.seed, build.SAMPLE, step)
      batch, sampling, seconds = collect(collector, policy.params, key, run.writer)
      batch, asked = teacher_prompts.ask(experiment, collector, batch, run.writer)
      learned = policy.learn(step, batch.rollouts, run.writer)  # at most mu passes, all jitted
      if ema:
        reference.move(policy.trained, ema)
      seconds["learn"] = learned.seconds
      metrics = learned.metrics | sampling | asked
      trained = int(rollouts.sampled_lengths(batch.rollouts).sum())
      metrics |= speeds(sampling["tokens"], trained, seconds)
      rows = sample_rows(batch, learned, experiment.log.samples, collector, model)
      run.writer.samples(step + 1, rows)
      run.log(step, metrics)
      run.after(step)
    run.finish()


def speeds(sampled: float, learned: float, seconds: dict[str, float]) -> dict[str, float]:
  """Returns completion tokens per second of the phases and the step, and the share of scoring.

  Args:
    sampled, learned: tokens of completions.
    seconds: of the phases "sample", "score" and "learn". Scoring ends when all rewards are on the
      host, those of reward models too.
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
) -> list[Json]:
  """Returns up to `limit` completions as samples.jsonl keeps them.

  Completions with a fault come first, then one of each group in turn.
  """
  r, trace = batch.rollouts, learned.trace
  faults = {
    (fault.prompt, fault.sample): f"{fault.name}: {fault.message}" for fault in batch.faults
  }
  prompts, group = r.lengths.shape
  places = [(p, g) for g in range(group) for p in range(prompts) if r.lengths[p, g]]
  shown = sorted(places, key=lambda place: place not in faults)[:limit]
  if not shown:
    return []
  padded = [*shown, *shown[:1] * (limit - len(shown))]  # one size, so that one program is compiled
  tokens, advantages, logprobs = rollouts.rows(
    model.layout, (r.tokens, trace.advantages, trace.logprobs), padded
  )
  assert logprobs is not None  # a reward model alone has none
  total = totals(r.rewards, r.given)
  gaps = disagreement(batch, collector.names, collector.learned, collector.rule)
  rows = []
  for n, (p, g) in enumerate(shown):
    example = batch.examples[p]
    assert example is not None  # a prompt that only fills the batch has no completion
    own = None if r.sampled is None else r.sampled[p, g]
    ids, text = rollouts.written(tokens[n], r.lengths[p, g], r.ended[p, g], model.tokenizer, own)
    real = slice(len(ids))
    row = {
      "question": example.question,
      "completion": text,
      "answer": example.answer,
      "reward": total[p, g],
      "advantage": advantages[n, real].mean(where=True if own is None else own[real]),
      "rewards": {name: r.components[p, g, i] for i, name in enumerate(collector.names)},
      "ended": "stopped" if r.ended[p, g] == STOPPED else "truncated",
      "tokens": [model.tokenizer.text(token) for token in ids],
      "advantages": [round(float(x), 4) for x in advantages[n, real]],
      "logprobs": [round(float(x), 4) for x in logprobs[n, real]],
    }
    if own is not None:
      row["tokens"] = model.tokenizer.texts(ids)  # joined they are a turn's text
      row["sampled"] = own[real].tolist()
      indices = np.flatnonzero(r.given[p, g]).tolist()
      row["turn_rewards"] = [[i, round(float(r.rewards[p, g, i]), 4)] for i in indices]
    if gaps is not None:
      row["disagreement"] = gaps[p, g]
    if learned.moved:
      before, after = learned.moved
      row["logprob_before"] = round(float(before[p, g]), 4)
      row["logprob_after"] = round(float(after[p, g]), 4)
    if (p, g) in faults:
      row["faults"] = faults[p, g]
    rows.append(row)
  return rows
