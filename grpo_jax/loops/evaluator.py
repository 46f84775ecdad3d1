"""Evaluation during a run: greedy and, before and after it, from several samples of each problem."""

import functools
from typing import Any

from ml_collections import ConfigDict

from grpo_jax import evaluate, metrics, sampler
from grpo_jax.errors import SettingError
from grpo_jax.generate import Generator
from grpo_jax.loops import build, checks, imports, scorers


class Evaluator:
  """Evaluates parameters of the policy on the test split."""

  def __init__(self, config: ConfigDict, model: build.Model):
    """Makes the samplers and finds the problems.

    Raises:
      SettingError: an `eval` setting that cannot be, a test split that is not there.
    """
    self.cfg, self.data, self.seed, self.deadline = config.eval, config.data, config.seed, config.rewards.deadline
    self.reward = scorers.eval_reward(config.eval)
    test = imports.eval_source(config.data) if config.eval.problems else ()
    self.problems = [test[i] for i in range(min(config.eval.problems, len(test)))]
    if config.eval.problems:
      build.check_prompts(self.problems, model, config, "eval.problems")
      checks.check_eval_reward(self.reward.score, self.problems, model, config)
    layout = sampler.decode_layout(model.layout, config.sampler.tensor)
    checks.check_eval_batch(config, layout)
    sample_shards = layout.size("sample")
    if config.eval.samples % sample_shards:
      raise SettingError(f"eval.samples={config.eval.samples}: use a multiple of {sample_shards}")
    # Greedy samples of a problem are all equal; the mesh asks for one in each of its shards.
    greedy = {"temperature": 0.0, "group": sample_shards}
    self.greedy = self._generator(config, model, greedy)
    self.sampled = self._generator(config, model, {"group": config.eval.samples})

  def _generator(self, config: ConfigDict, model: build.Model, changes: dict[str, Any]) -> Generator:
    sample = sampler.make_sampler(model.decoder, ConfigDict(config.sampler.to_dict() | changes), model.stop)
    return Generator(
      sample, build.sizes(config, model.layout), model.tokenizer, model.render, config.data.max_prompt_length
    )

  def __call__(self, writer: metrics.Writer, params: Any, step: int, samples: bool = False) -> dict[str, float]:
    """Metrics of `params` after `step` steps, written and shown; those of several samples only where asked for.

    Without problems (`eval.problems=0`) there are none.

    Raises:
      SettingError: the reward failed on everything.
    """
    if not self.problems:
      return {}
    key = build.key(self.seed, build.EVALUATE, step)
    with writer.phase("eval"):
      outcomes = [self._solve(self.greedy, params, key, writer)]
      found = evaluate.greedy_metrics(outcomes[0])
      if samples and self.cfg.samples:
        outcomes.append(self._solve(self.sampled, params, key, writer))
        found |= evaluate.sampled_metrics(outcomes[1])
        if not self.reward.answer_of:
          writer.warn(
            "maj", f"eval.reward={self.cfg.reward!r}: its file has no answer_of(completion), so there is no maj@k"
          )
    if failed := sum(len(each.faults) for each in outcomes):
      found["reward_faults"] = failed
      what = f"failed on {failed} completions, which count as not solved"
      writer.warn("eval.reward", f"eval.reward={self.cfg.reward!r} {what}")
    writer.evaluation(step, self.about(step) | {f"eval/{name}": value for name, value in found.items()})
    return found

  def about(self, step: int) -> dict[str, Any]:
    """What is logged beside the metrics of an evaluation after `step` steps: {}."""
    del step
    return {}

  def tested(self) -> list[Any]:
    """What an evaluation is of: the test data, and how many samples of which problems."""
    e, d = self.cfg, self.data
    return [e.problems, e.samples, e.reward, d.test, d.test_name, d.test_path]

  def said(self, before: dict[str, float], after: dict[str, float]) -> str:
    """The evaluations before and after a run, in words."""
    if "accuracy" not in after:
      return "not evaluated, since eval.problems=0"
    was = f"{before['accuracy']:.1%} -> " if "accuracy" in before else ""
    return f"greedy accuracy {was}{after['accuracy']:.1%} on {len(self.problems)} test problems"

  def _solve(self, generator: Generator, params: Any, key: Any, writer: metrics.Writer) -> evaluate.Outcomes:
    # Chosen anew each time, and so the same in every evaluation of every process: the problems are.
    generator = generator._replace(sizes=generator.sizes.fresh())
    progress = functools.partial(writer.progress, "eval")
    return evaluate.solve(
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
    )
