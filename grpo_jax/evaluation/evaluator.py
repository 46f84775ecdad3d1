"""Evaluates a policy during a run: greedily, and from several samples before and after it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from grpo_jax.aliases import Json
from grpo_jax.distributed import inputs
from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.learning import passes
from grpo_jax.models.decoder import Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.reward_models import rewards
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import sampler
from grpo_jax.sampling.generate import Generator
from grpo_jax.setup import build, checks, environments, solutions
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import Completion, Example, KnownRollouts


def check_mesh(experiment: Experiment, learner: Layout, decoding: Layout) -> None:
  """Refuses batches and samples of an evaluation that the meshes do not divide.

  Args:
    experiment: of the run.
    learner: the mesh of the learner, on which reward models judge whole batches.
    decoding: that of the sampler.
  """
  checks.check_eval_batch(experiment, decoding)
  if experiment.kind == "iterative" or (experiment.kind == "online" and experiment.reward_models):
    checks.check_eval_batch(experiment, learner)
  if experiment.eval.samples % decoding.size("sample"):
    raise SettingError(
      f"eval.samples={experiment.eval.samples}: use a multiple of {decoding.size('sample')}"
    )


class Evaluator:
  """Evaluates the policy on the test split, as `evaluation.Evaluation` describes."""

  def __init__(
    self,
    experiment: Experiment,
    model: build.Model,
    models: Callable[[], Sequence[RewardModel]] | None = None,
  ):
    """Makes the samplers and reads the problems.

    Args:
      experiment: of the run.
      model: the policy.
      models: returns the present reward models of the policy; called at each evaluation.
    """
    self.cfg, self.data, self.seed = experiment.eval, experiment.data, experiment.seed
    self.deadline = experiment.rewards.deadline
    reward = experiment.eval_reward
    self.reward = reward._replace(score=self._counted(reward.score))
    # completions to which the reward gave something, and to which it gave nothing
    self.answers = {True: 0, False: 0}
    test = experiment.open_test() if experiment.eval.problems else ()
    self.problems = [test[i] for i in range(min(experiment.eval.problems, len(test)))]
    if experiment.eval.problems:
      build.check_prompts(self.problems, model, experiment, "eval.problems")
      solutions.check_eval_reward(reward.score, self.problems, model, experiment)
    layout = sampler.decode_layout(model.layout, experiment.sampler.tensor)
    if experiment.eval.problems:
      check_mesh(experiment, model.layout, layout)
    sample_shards = layout.size("sample")
    # Greedy samples of a problem are all equal; the mesh asks for one in each of its shards.
    greedy = {"temperature": 0.0, "group": sample_shards}
    self.greedy = self._generator(experiment, model, greedy)
    self.sampled = self._generator(experiment, model, {"group": experiment.eval.samples})
    self.models, self.judging = models, judging_sizes(experiment, model.layout, sample_shards)

  def _generator(self, experiment: Experiment, model: build.Model, changes: Json) -> Generator:
    sample = sampler.make_sampler(
      model.decoder,
      dataclasses.replace(experiment.sampler, **changes),
      model.stop,
      model.stop_table,
    )
    sizes = build.sizes(experiment, model.layout)
    return environments.make_generator(experiment, model, sample, sizes)

  def _counted(self, reward: Callable) -> Callable:
    """Returns the reward with a count in `self.answers` of what it returns."""

    @functools.wraps(reward)
    def score(example: Example, completion: Completion) -> Any:
      value = reward(example, completion)
      self.answers[not (value is None or isinstance(value, list | tuple) and not value)] += 1
      return value

    return score

  def __call__(
    self, writer: Writer, params: Params, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Returns the metrics of `params`; {} without problems (`eval.problems=0`)."""
    if not self.problems:
      return {}
    key = build.key(self.seed, build.EVALUATE, step)
    with writer.phase("eval"):
      progress = functools.partial(writer.progress, "eval, greedy answers:")
      greedy = self.solve(self.greedy, params, key, progress, learned=self._learned())
      sampled = None
      if samples and self.cfg.samples:
        progress = functools.partial(writer.progress, f"eval, {self.cfg.samples} samples each:")
        sampled = self.solve(self.sampled, params, key, progress)
    metrics = policy.metrics_of(greedy, sampled) | policy.learned_metrics(greedy)
    for about, text in self.warnings(metrics):
      writer.warn(about, text)
    named = {f"eval/{name}": value for name, value in metrics.items()}
    writer.evaluation(step, self.about(step) | named)
    return metrics

  def about(self, step: int) -> dict[str, float]:
    """Returns what is logged next to the metrics of an evaluation: nothing."""
    del step
    return {}

  def contents(self) -> dict[str, str]:
    """Returns the number of problems, and digests of the first and the last one (inputs.py)."""
    return inputs.describe_examples("test data", self.problems)

  def tested(self) -> list[Any]:
    """Returns the settings that decide on the test data and on what is right."""
    e, d = self.cfg, self.data
    return [e.problems, e.samples, e.reward, repr(e.arguments), d.test, d.test_name, d.test_path]

  def summary(self, before: dict[str, float], after: dict[str, float]) -> str:
    """Returns the greedy accuracy before and after a run in words."""
    if "accuracy" not in after:
      return "not evaluated, since eval.problems=0"
    start = f"{before['accuracy']:.1%} -> " if "accuracy" in before else ""
    return f"greedy accuracy {start}{after['accuracy']:.1%} on {len(self.problems)} test problems"

  def _learned(self) -> Callable[[KnownRollouts], Sequence[rewards.NamedScores]] | None:
    """Returns the function that scores rollouts by the reward models; None if there are none."""
    models = self.models() if self.models else ()
    return functools.partial(rewards.given_by, models, self.judging.fresh()) if models else None

  def warnings(self, metrics: dict[str, float]) -> list[tuple[str, str]]:
    """Returns warnings (topic, text) about metrics that are lower than they should be."""
    warnings, reward = [], f"eval.reward={self.cfg.reward!r}"
    if self.answers[False] and not self.answers[True]:
      text = (
        f"{reward} returned None, or an empty list, for each of {self.answers[False]} "
        "completions, which count as not solved; is a `return` missing?"
      )
      warnings.append(("eval.reward gives none", text))
    if "pass@1" in metrics and not self.reward.answer_of:
      text = f"{reward}: its file has no answer_of(completion), so there is no maj@k"
      warnings.append(("maj", text))
    if failed := metrics.get("reward_faults"):
      played = "" if self.greedy.environment is None else " or the environment"
      text = (
        f"{reward}{played} failed on {failed} completions: those that it did not score count as "
        "not solved, and those without an answer have no vote"
      )
      warnings.append(("eval.reward", text))
    if too_long := metrics.get("prompts_too_long"):
      text = (
        f"{too_long} of {len(self.problems)} test prompts have more than data.max_prompt_length="
        f"{self.data.max_prompt_length} tokens and count as not solved"
      )
      warnings.append(("eval.problems", text))
    return warnings

  def solve(
    self,
    generator: Generator,
    params: Params,
    key: jax.Array,
    progress: Callable[[int, int], None],
    seen: Callable[[Example, Completion, policy.Judged], None] | None = None,
    learned: Callable[[KnownRollouts], Sequence[rewards.NamedScores]] | None = None,
  ) -> policy.Outcomes:
    """Solves the problems with `self.greedy` or `self.sampled`; see `policy.solve`."""
    # sizes are chosen anew each time, and so the same in every evaluation of every process
    generator = generator._replace(sizes=generator.sizes.fresh())
    return policy.solve(
      generator,
      params,
      self.problems,
      self.reward.score,
      self.reward.answer_of,
      key,
      games=build.key(self.seed, build.EVALUATE, 0),
      batch=self.cfg.batch if learned else self._batch(generator),
      progress=progress,
      deadline=self.deadline,
      score_ahead=self.reward.score_ahead,
      learned=learned,
      seen=seen,
    )

  def _batch(self, generator: Generator) -> int:
    """Returns eval.batch, or fewer prompts if there are fewer problems.

    An empty prompt decodes in a slot like any other. Reward models judge whole batches.
    """
    layouts = generator.sample.layout, generator.sizes.layout
    shards = math.lcm(*(layout.size("prompt") for layout in layouts))
    return min(self.cfg.batch, -(-len(self.problems) // shards) * shards)


def judging_sizes(experiment: Experiment, layout: Layout, group: int) -> Sizes:
  """Returns the sizes of the programs with which reward models score an evaluation.

  A microbatch has at most as many completions as one of the learner, so it takes no more memory.
  `group` is the number of completions of a problem.
  """
  learners = passes.microbatches_of_rollout(experiment.learner, experiment.data.prompts)
  most = experiment.data.prompts * experiment.sampler.group // learners
  prompts = experiment.eval.batch // layout.size("prompt")  # of a shard
  cuts = [n for n in range(1, prompts + 1) if prompts % n == 0]
  fitting = (n for n in cuts if experiment.eval.batch // n * group <= most)
  return build.sizes(experiment, layout, microbatches=next(fitting, prompts))
