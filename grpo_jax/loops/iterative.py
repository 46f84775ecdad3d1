"""Iterative GRPO: Algorithm 1 of DeepSeekMath (arXiv 2402.03300), with a reward model that learns.

    for iteration = 1, ..., I:
      reference <- policy                                                           (line 3)
      for step = 1, ..., M:
        sample a batch of prompts, and G completions of each from the policy        (lines 5 to 7)
        rewards of the completions by the reward model                              (line 8)
        advantages relative to the group, then mu passes of the policy              (lines 9 to 11)
      train the reward model on the policy's samples, and on some of earlier ones   (line 12)

The reward that `iterative.labels` names, such as a check of the answer or of each step, tells the
reward model which samples are better (teaching.py); its weight among the rewards of the policy may
be 0. Policy, reward model and reference are saved together, so a run that is killed in any of these
phases resumes with the same numbers. The policy is evaluated at the end of each iteration.
"""

import functools
from collections.abc import Callable, Sequence

import jax

from grpo_jax.distributed import hosts
from grpo_jax.errors import CheckpointError, SettingError, said_of
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.io import storage
from grpo_jax.loops import teaching
from grpo_jax.loops.carried import warn_of_stale
from grpo_jax.loops.collect import collect
from grpo_jax.loops.collector import make_collector
from grpo_jax.loops.export import export_merged
from grpo_jax.loops.groups import joined
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.online import speeds
from grpo_jax.loops.protocols import Trained
from grpo_jax.loops.reference import Policy, Reference
from grpo_jax.loops.reward_data.replay import Replay
from grpo_jax.loops.run import Run
from grpo_jax.loops.sample_rows import sample_rows
from grpo_jax.loops.teaching import NAME, Judge, Kind
from grpo_jax.models.decoder import Params
from grpo_jax.reward_models import load
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.run import manifest, provenance
from grpo_jax.run.checkpoint_files import Extra
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, references, solutions, weights
from grpo_jax.setup.experiment import Experiment


def train(experiment: Experiment, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  check(experiment)
  model = build.model(experiment)
  checks.check(experiment, model.decoder)
  collector = make_collector(experiment, model)
  label = next(
    function for name, function, _ in collector.rewards if name == experiment.iterative.labels
  )
  solved = collector.batches.first(solutions.FIRST_SOLUTIONS)
  # of process 0: the reward may fail on another, which then would compile other programs
  kind = hosts.gather(teaching.kind_of(label, solved, model, experiment))[0]
  check_batches(experiment, model, kind)
  judge_config, judge_model = find_judge(experiment, model, kind)
  judge = Judge(judge_config, judge_model, 1.0)
  policy = Policy(experiment, model, experiment.sampler.temperature, collector.generator.sizes)
  dtype = provenance.weights_dtype(judge_config.init_from)
  base = weights.find_source(judge_config.init_from)[0]
  reference, replay, cfg = Reference(policy), Replay(workdir), experiment.iterative
  learners: dict[str, Trained] = {"policy": policy, NAME: judge, weights.REFERENCE: reference}
  models = functools.partial(current_models, collector.models, judge, cfg.weight, kind.steps)
  evaluator = IterationEvaluator(experiment, model, models)

  with Run(experiment, workdir, model, collector.data, learners, evaluator, collector.rule) as run:
    keep_kind(run.extra, kind, experiment)
    if collector.carrier:
      warn_of_stale(experiment.objective, run.writer)
    for step in run.steps():
      iteration, of_iteration = divmod(step, cfg.steps)
      ends = of_iteration == cfg.steps - 1
      if of_iteration == 0:
        reference.take(policy.trained)
        replay.forget(teaching.oldest_step(run.checkpoints.oldest(), experiment))
      policy.ref_params = reference.trained
      current = collector._replace(models=models())
      key = build.key(experiment.seed, build.SAMPLE, step)
      batch, sampling, seconds, sampled = collect(current, policy.params, key, run.writer)
      # the groups that dynamic sampling drops have labels, too
      replay.add(step, teaching.labelled(kind, joined(sampled), current, experiment, step))
      del sampled  # its arrays need not stay on the mesh
      learned = policy.learn(step, batch.rollouts, run.writer)
      seconds["learn"] = learned.seconds
      metrics = learned.metrics | sampling | {"iteration": iteration + 1}
      trained = int(rollouts.sampled_lengths(batch.rollouts).sum())
      metrics |= speeds(sampling["tokens"], trained, seconds)
      if ends:
        taught = teaching.teach(judge, kind, replay, step, experiment, run.writer)
        metrics |= taught
        evaluator.taught = teaching.in_words(kind, taught)
      run.writer.samples(
        step + 1, sample_rows(batch, learned, experiment.log.samples, current, model)
      )
      run.log(step, metrics, always=ends)
      run.after(step, evaluate=ends)

    def export_judge() -> None:
      out = storage.place(workdir) / NAME
      with run.writer.phase("export"):
        export_merged(out, judge.model, judge.params, dtype, base, run.writer)
      if jax.process_index() == 0:
        manifest.record(workdir, (NAME,))

    run.finish(export_judge)  # before result.json, which says that the run is done


def current_models(
  others: Sequence[RewardModel], judge: Learner, weight: float, steps: bool
) -> list[RewardModel]:
  """Returns the reward models that score samples: the others, and the learning one as it is now."""
  return [*others, RewardModel(NAME, weight, steps, judge.model.decoder, judge.params)]


def find_judge(
  experiment: Experiment, model: build.Model, kind: Kind
) -> tuple[Experiment, build.Model]:
  """Returns the experiment in which the reward model is trained and its model, after their checks.

  Args:
    experiment: of the run.
    model: the policy.
    kind: of the reward model; both kinds have the same model.
  """
  source = experiment.iterative.reward_model
  own = teaching.experiment_of_reward_model(experiment, kind)
  with teaching.said_of_folder(experiment):
    judge = build.model(own, scores=True)
  # with `tokenizer` set it has the policy's, whatever it was trained with
  references.check_tokens(experiment, source, model, "iterative.reward_model")
  load.check_tokenizer(model, judge, f"iterative.reward_model={source!r}")
  return own, judge


def check(experiment: Experiment, absent: str = "") -> None:
  """Refuses settings of the loop that contradict each other, and a reward model that is not there.

  Args:
    experiment: of the run.
    absent: a folder that an earlier run will write; a reward model from there is let through.
  """
  labels, names = experiment.iterative.labels, [name for name, *_ in experiment.rewards.functions]
  if labels not in names:
    raise SettingError(
      f"iterative.labels={labels!r}: use the name of one of rewards.functions, {', '.join(names)}"
    )
  if NAME in experiment.reward_names:
    raise SettingError(
      f"rewards has {NAME!r}, which is the name of the reward model that learns: use another"
    )
  source = experiment.iterative.reward_model
  if source and not storage.inside(source, absent):
    folder, _ = weights.find_source(source)
    with said_of("iterative.reward_model"):
      build.check_start(teaching.experiment_of_reward_model(experiment, teaching.OUTCOME), folder)
      weights.read_shape(folder)


def keep_kind(extra: Extra, kind: Kind, experiment: Experiment) -> None:
  """Refuses to go on with the other kind of reward model, which has learned another thing.

  It is found anew at each start. A reward with a smaller `rewards.deadline` may fail on every
  worked solution, and is then taken for one of outcomes.
  """
  began = extra.setdefault("kind", kind.objective)
  if began != kind.objective:
    raise CheckpointError(
      f"iterative.labels={experiment.iterative.labels!r}: this run began with a {began}, and its "
      f"values for worked solutions now ask for a {kind.objective}; use the reward as it was when "
      f"the run began, or a longer rewards.deadline than {experiment.rewards.deadline:g}"
    )


def check_batches(experiment: Experiment, model: build.Model, kind: Kind) -> None:
  """Refuses batches of the reward model that the mesh does not divide."""
  shards, samples = model.layout.size("prompt"), model.layout.size("sample")
  if experiment.iterative.pairs % shards:
    raise SettingError(
      f"iterative.pairs={experiment.iterative.pairs}: use a multiple of {shards}, the shards of "
      "the mesh"
    )
  if not kind.steps and 2 % samples:
    raise SettingError(
      f"mesh.group={samples} with loop='iterative', whose pairs are two samples: use 1 or 2"
    )


class IterationEvaluator(Evaluator):
  """Evaluates the policy, and sums up each iteration in a line."""

  taught = ""  # how the reward model did in this iteration, in words; the loop sets it

  def __init__(
    self, experiment: Experiment, model: build.Model, models: Callable[[], Sequence[RewardModel]]
  ):
    super().__init__(experiment, model, models)
    self.steps = experiment.iterative.steps

  def about(self, step: int) -> dict[str, float]:
    """Returns the number of the iteration that ends after `step` steps; {} if none does."""
    return {"iteration": step // self.steps} if step and step % self.steps == 0 else {}

  def __call__(
    self, writer: Writer, params: Params, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Evaluates as `Evaluator` does, and prints a line at the end of an iteration."""
    metrics = super().__call__(writer, params, step, samples)
    parts = [f"accuracy {metrics['accuracy']:.1%}"] if "accuracy" in metrics else []
    parts += [self.taught] if self.taught else []
    if self.about(step) and parts:
      writer.say(f"iteration {step // self.steps}: {', '.join(parts)}")
    return metrics
