"""Evaluation of a process reward model during a run: how it tells right steps from wrong ones that
it never learned.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.reward_models import step_scores
from grpo_jax.reward_models.scores import scores_of_all
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks
from grpo_jax.types import Rollouts


class Steps(NamedTuple):
  """Solutions whose steps have labels, as numpy arrays."""

  rollouts: Rollouts  # the labels are the rewards, [P, G, L], where `given`
  # [P, G, L] float32, what the rewards gave for the same steps; NaN where they gave nothing
  rule: np.ndarray


class StepEvaluator:
  """Evaluates the parameters of a process reward model on held-out solutions."""

  def __init__(self, config: ConfigDict, model: build.Model):
    """Begins without solutions; `take` gives it some.

    Raises:
      SettingError: an `eval.batch` that the mesh does not divide.
    """
    self.cfg, self.offline, self.rewards = (
      config.eval,
      config.offline,
      repr(config.rewards.functions),
    )
    checks.check_eval_batch(config, model.layout)
    self.decoder, self.sizes = model.decoder, build.sizes(config, model.layout, microbatches=1)
    self.held_out: Steps | None = None

  def take(self, held_out: Steps) -> None:
    """Evaluates on these from now on.

    Raises:
      SettingError: none of their steps has a label, where some are to be held out.
    """
    if self.offline.held_out and not held_out.rollouts.given.any():
      raise SettingError(
        f"offline.held_out={self.offline.held_out}: no step of these prompts has a label; use more "
        "of them"
      )
    self.held_out = held_out

  def __call__(
    self, writer: Writer, params: Any, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Metrics of `params` after `step` steps, written and shown: those of
    `step_scores.step_metrics`.

    `step_NAME` is against the labels, `rule_NAME` against what the rewards say of the same steps,
    and `label_agreement` the share of the labels that agree with the rewards: where those check
    steps exactly, how good labels from continuations are. Both are left out where the rewards made
    the labels. Without held-out solutions (`offline.held_out=0`) there are no metrics.
    """
    if self.held_out is None or not self.offline.held_out:
      return {}
    r, rule = self.held_out
    with writer.phase("eval"):
      show, sizes = functools.partial(writer.progress, "eval"), self.sizes.fresh()
      scores = scores_of_all(self.decoder, params, r, sizes, self.cfg.batch, show)
    found = _named("step", step_scores.step_metrics(scores[r.given], r.rewards[r.given])) | {
      "steps": int(r.given.sum())
    }
    ruled = r.given & ~np.isnan(rule)
    if ruled.any():
      found |= _named("rule", step_scores.step_metrics(scores[ruled], rule[ruled]))
      found["label_agreement"] = float(((r.rewards[ruled] > 0.5) == (rule[ruled] > 0.5)).mean())
    writer.evaluation(step, {f"eval/{name}": value for name, value in found.items()})
    return found

  def contents(self) -> dict[str, str]:
    """Returns {}: what is held out is of the file or the samples that the run is trained on."""
    return {}

  def tested(self) -> list[Any]:
    """What an evaluation is of: how many prompts, and what labels their steps."""
    o = self.offline
    return [o.held_out, o.steps, o.continuations, o.labels, self.rewards]

  def said(self, before: dict[str, float], after: dict[str, float]) -> str:
    """The evaluations before and after a run, in words."""
    if "step_accuracy" not in after:
      return "not evaluated on right and wrong steps, of which offline.held_out gives none"
    was = f"{before['step_accuracy']:.1%} -> " if "step_accuracy" in before else ""
    rule = f", {after['rule_accuracy']:.1%} by the rewards" if "rule_accuracy" in after else ""
    return (
      f"balanced step accuracy {was}{after['step_accuracy']:.1%}{rule} on {after['steps']} "
      "held-out steps"
    )


def _named(prefix: str, found: dict[str, float]) -> dict[str, float]:
  return {f"{prefix}_{name}": value for name, value in found.items()}
