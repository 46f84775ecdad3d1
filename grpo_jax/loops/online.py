"""Samples, scores and learns: GRPO and every objective on the live policy's own samples."""

from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.loops import teacher_prompts
from grpo_jax.loops.carried import warn_of_stale
from grpo_jax.loops.collect import collect
from grpo_jax.loops.collector import make_collector
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.protocols import Trained
from grpo_jax.loops.reference import Policy, Reference
from grpo_jax.loops.run import Run
from grpo_jax.loops.sample_rows import sample_rows
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, weights
from grpo_jax.setup.experiment import Experiment


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
      batch, sampling, seconds = collect(collector, policy.params, key, run.writer)[:3]
      batch, asked = teacher_prompts.ask(experiment, collector, batch, run.writer.warn)
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
