"""Evaluation during a run: greedy and, before and after it, from several samples of each problem."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from grpo_jax.distributed import inputs
from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.learning import learn
from grpo_jax.packing.sizes import Sizes
from grpo_jax.reward_models import rewards
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import sampler
from grpo_jax.sampling.generate import Generator
from grpo_jax.setup import build, checks, registry, scorers
from grpo_jax.types import Completion, Example


class Evaluator:
  """Evaluates parameters of the policy on the test split."""

  def __init__(
    self,
    config: ConfigDict,
    model: build.Model,
    models: Callable[[], Sequence[RewardModel]] | None = None,
  ):
    """Makes the samplers and finds the problems.

    Args:
      config: of the run.
      model: of the policy.
      models: called at each evaluation for the reward models by which the policy is rewarded; None:
        there are none.

    Raises:
      SettingError: an `eval` setting that cannot be, a test split that is not there.
    """
    self.cfg, self.data, self.seed, self.deadline = (
      config.eval,
      config.data,
      config.seed,
      config.rewards.deadline,
    )
    found = scorers.eval_reward(config.eval)
    self.reward = found._replace(score=self._noted(found.score))
    self.answers = {
      True: 0,
      False: 0,
    }  # on how many completions it has returned something, and nothing
    test = registry.eval_source(config.data) if config.eval.problems else ()
    self.problems = [test[i] for i in range(min(config.eval.problems, len(test)))]
    if config.eval.problems:
      build.check_prompts(self.problems, model, config, "eval.problems")
      checks.check_eval_reward(found.score, self.problems, model, config)
    layout = sampler.decode_layout(model.layout, config.sampler.tensor)
    checks.check_eval_batch(config, layout)
    sample_shards = layout.size("sample")
    if config.eval.samples % sample_shards:
      raise SettingError(f"eval.samples={config.eval.samples}: use a multiple of {sample_shards}")
    # Greedy samples of a problem are all equal; the mesh asks for one in each of its shards.
    greedy = {"temperature": 0.0, "group": sample_shards}
    self.greedy = self._generator(config, model, greedy)
    self.sampled = self._generator(config, model, {"group": config.eval.samples})
    self.models, self.judging = models, judging_sizes(config, model.layout, sample_shards)

  def _generator(
    self, config: ConfigDict, model: build.Model, changes: dict[str, Any]
  ) -> Generator:
    sample = sampler.make_sampler(
      model.decoder, ConfigDict(config.sampler.to_dict() | changes), model.stop
    )
    d, sizes = config.data, build.sizes(config, model.layout)
    return Generator(sample, sizes, model.tokenizer, model.render, d.max_prompt_length, d.on_long)

  def _noted(self, reward: Callable) -> Callable:
    """Returns the reward; `self.answers` counts what it returns."""

    @functools.wraps(reward)
    def score(example: Example, completion: Completion) -> Any:
      value = reward(example, completion)
      self.answers[not (value is None or isinstance(value, list | tuple) and not value)] += 1
      return value

    return score

  def __call__(
    self, writer: Writer, params: Any, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Metrics of `params` after `step` steps, written and shown; those of several samples only
    where asked for.

    Without problems (`eval.problems=0`) there are none.

    Raises:
      SettingError: the reward failed on everything.
    """
    if not self.problems:
      return {}
    key = build.key(self.seed, build.EVALUATE, step)
    with writer.phase("eval"):
      progress = functools.partial(writer.progress, "eval")
      outcomes = [self.solve(self.greedy, params, key, progress, learned=self._learned())]
      if samples and self.cfg.samples:
        outcomes.append(self.solve(self.sampled, params, key, progress))
    found = policy.metrics_of(*outcomes) | policy.learned_metrics(outcomes[0])
    for about, text in self.warnings(found):
      writer.warn(about, text)
    writer.evaluation(
      step, self.about(step) | {f"eval/{name}": value for name, value in found.items()}
    )
    return found

  def about(self, step: int) -> dict[str, Any]:
    """What is logged beside the metrics of an evaluation after `step` steps: {}."""
    del step
    return {}

  def contents(self) -> dict[str, str]:
    """Returns how many problems there are, and digests of the first and the last one; see
    inputs.py.
    """
    return inputs.of_examples("test data", self.problems)

  def tested(self) -> list[Any]:
    """What an evaluation is of: the test data, and how many samples of which problems."""
    e, d = self.cfg, self.data
    return [e.problems, e.samples, e.reward, repr(e.arguments), d.test, d.test_name, d.test_path]

  def said(self, before: dict[str, float], after: dict[str, float]) -> str:
    """The evaluations before and after a run, in words."""
    if "accuracy" not in after:
      return "not evaluated, since eval.problems=0"
    was = f"{before['accuracy']:.1%} -> " if "accuracy" in before else ""
    return f"greedy accuracy {was}{after['accuracy']:.1%} on {len(self.problems)} test problems"

  def _learned(self) -> Callable | None:
    """What says what reward models give to sampled rollouts; None where there are none, which then
    costs nothing.
    """
    models = self.models() if self.models else ()
    return functools.partial(rewards.given_by, models, self.judging.fresh()) if models else None

  def warnings(self, found: dict[str, float]) -> list[tuple[str, str]]:
    """What to say of metrics that are less than they seem: (what it is about, the text)."""
    said, reward = [], f"eval.reward={self.cfg.reward!r}"
    if self.answers[False] and not self.answers[True]:
      said.append(
        (
          "eval.reward gives none",
          f"{reward} returned None, or an empty list, for each of {self.answers[False]} "
          "completions, which count as "
          "not solved; is a `return` missing?",
        )
      )
    if "pass@1" in found and not self.reward.answer_of:
      said.append(("maj", f"{reward}: its file has no answer_of(completion), so there is no maj@k"))
    if failed := found.get("reward_faults"):
      said.append(
        ("eval.reward", f"{reward} failed on {failed} completions, which count as not solved")
      )
    if long := found.get("prompts_too_long"):
      said.append(
        (
          "eval.problems",
          f"{long} of {len(self.problems)} test prompts have more than data.max_prompt_length="
          f"{self.data.max_prompt_length} tokens and count as not solved",
        )
      )
    return said

  def solve(
    self,
    generator: Generator,
    params: Any,
    key: Any,
    progress: Callable[[int, int], None],
    seen: Callable | None = None,
    learned: Callable | None = None,
  ) -> policy.Outcomes:
    """What becomes of the problems under `self.greedy` or `self.sampled`.

    `progress`, `seen` and `learned` are those of `evaluate.solve`.
    """
    # Chosen anew each time, and so the same in every evaluation of every process: the problems are.
    generator = generator._replace(sizes=generator.sizes.fresh())
    return policy.solve(
      generator,
      params,
      self.problems,
      self.reward.score,
      self.reward.answer_of,
      key,
      batch=self.cfg.batch,
      progress=progress,
      deadline=self.deadline,
      score_ahead=self.reward.score_ahead,
      learned=learned,
      seen=seen,
    )


def judging_sizes(config: ConfigDict, layout: Layout, group: int) -> Sizes:
  """The sizes of the programs by which reward models score an evaluation, `group` completions of a
  problem.

  A microbatch has at most as many completions as one of the learner, and so takes no more memory.
  """
  learners = learn.microbatches_of_rollout(config.learner, config.data.prompts)
  most = config.data.prompts * config.sampler.group // learners
  prompts = config.eval.batch // layout.size("prompt")  # of a shard
  cuts = [n for n in range(1, prompts + 1) if prompts % n == 0]
  fitting = (n for n in cuts if config.eval.batch // n * group <= most)
  return build.sizes(config, layout, microbatches=next(fitting, prompts))
