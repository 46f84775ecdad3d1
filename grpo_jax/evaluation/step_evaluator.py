"""Evaluates a process reward model during a run, on steps that it is not trained on."""

import functools
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Params
from grpo_jax.reward_models import step_scores
from grpo_jax.reward_models.scores import scores_of_all
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import HostScored


class Steps(NamedTuple):
  """Solutions whose steps have labels, on the host."""

  rollouts: HostScored  # the labels are the rewards, [P, G, L], where `given`
  # [P, G, L] float32, values of the rewards for the same steps; NaN where they gave nothing
  rule: np.ndarray


class StepEvaluator:
  """Measures how well a process reward model tells right steps from wrong ones."""

  def __init__(self, experiment: Experiment, model: build.Model):
    """Begins without solutions; `take` gives it some."""
    self.cfg, self.offline = experiment.eval, experiment.offline
    self.rewards = repr(experiment.rewards.functions)
    if experiment.offline.held_out:
      checks.check_eval_batch(experiment, model.layout)
    self.decoder, self.sizes = model.decoder, build.sizes(experiment, model.layout, microbatches=1)
    self.held_out: Steps | None = None

  def take(self, held_out: Steps) -> None:
    """Takes the solutions to evaluate on."""
    if self.offline.held_out and not held_out.rollouts.given.any():
      raise SettingError(
        f"offline.held_out={self.offline.held_out}: no step of these prompts has a label; use more "
        "of them"
      )
    self.held_out = held_out

  def __call__(
    self, writer: Writer, params: Params, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Returns `step_scores.step_metrics` of `params`; {} without `offline.held_out`.

    `step_NAME` compares with the labels, `rule_NAME` with the rewards of the same steps, and
    `label_agreement` is the share of labels that agree with these rewards: how good labels from
    continuations are, if the rewards check steps exactly. The last two are left out if the rewards
    made the labels.
    """
    if self.held_out is None or not self.offline.held_out:
      return {}
    r, rule = self.held_out
    with writer.phase("eval"):
      show, sizes = functools.partial(writer.progress, "eval"), self.sizes.fresh()
      scores = scores_of_all(self.decoder, params, r, sizes, self.cfg.batch, show)
    metrics = _named("step", step_scores.step_metrics(scores[r.given], r.rewards[r.given]))
    metrics["steps"] = int(r.given.sum())
    ruled = r.given & ~np.isnan(rule)
    if ruled.any():
      metrics |= _named("rule", step_scores.step_metrics(scores[ruled], rule[ruled]))
      metrics["label_agreement"] = float(((r.rewards[ruled] > 0.5) == (rule[ruled] > 0.5)).mean())
    writer.evaluation(step, {f"eval/{name}": value for name, value in metrics.items()})
    return metrics

  def contents(self) -> dict[str, str]:
    """Returns {}: the held-out data is part of the run's own data."""
    return {}

  def tested(self) -> list[Any]:
    """Returns the settings that decide on the held-out prompts and their labels."""
    o = self.offline
    return [o.held_out, o.steps, o.continuations, o.labels, self.rewards]

  def summary(self, before: dict[str, float], after: dict[str, float]) -> str:
    """Returns the accuracy before and after a run in words."""
    if "step_accuracy" not in after:
      return "not evaluated on right and wrong steps, of which offline.held_out gives none"
    start = f"{before['step_accuracy']:.1%} -> " if "step_accuracy" in before else ""
    rule = f", {after['rule_accuracy']:.1%} by the rewards" if "rule_accuracy" in after else ""
    return (
      f"balanced step accuracy {start}{after['step_accuracy']:.1%}{rule} on {after['steps']} "
      "held-out steps"
    )


def _named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
  return {f"{prefix}_{name}": value for name, value in metrics.items()}
