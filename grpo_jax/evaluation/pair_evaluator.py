"""Evaluates a reward model during a run, on pairs that it is not trained on."""

import functools
from typing import Any

import jax
import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Params
from grpo_jax.reward_models import scores
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import HostRollouts


class PairEvaluator:
  """Measures how well a reward model tells the better of two on held-out pairs."""

  def __init__(self, experiment: Experiment, model: build.Model):
    """Begins without pairs; `take` gives it some."""
    self.cfg, self.offline = experiment.eval, experiment.offline
    if experiment.offline.held_out:
      checks.check_eval_batch(experiment, model.layout)
    self.decoder, self.sizes = model.decoder, build.sizes(experiment, model.layout, microbatches=1)
    self.pairs: HostRollouts | None = None

  def take(self, pairs: HostRollouts) -> None:
    """Takes the pairs to evaluate on, `[N, 2, ...]`; leaves out empty ones, which were too long."""
    real = np.flatnonzero(pairs.lengths.all(axis=1))
    if self.offline.held_out and not len(real):
      raise SettingError(
        f"offline.held_out={self.offline.held_out}: all of these pairs are too long; use a larger "
        "data.max_prompt_length or sampler.max_length"
      )
    self.pairs = jax.tree.map(lambda x: x[real], pairs)

  def __call__(
    self, writer: Writer, params: Params, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Returns `scores.pair_metrics` of `params`; {} without pairs (`offline.held_out=0`)."""
    if self.pairs is None or not len(self.pairs.lengths):
      return {}
    with writer.phase("eval"):
      show, sizes = functools.partial(writer.progress, "eval"), self.sizes.fresh()
      values = scores.scores_of_all(self.decoder, params, self.pairs, sizes, self.cfg.batch, show)
    metrics = scores.pair_metrics(scores.margins(values, self.pairs.lengths))
    metrics |= {"pairs": len(values)}
    writer.evaluation(step, {f"eval/{name}": value for name, value in metrics.items()})
    return metrics

  def contents(self) -> dict[str, str]:
    """Returns {}: the held-out data is part of the run's own data."""
    return {}

  def tested(self) -> list[Any]:
    """Returns the settings that decide on the held-out pairs."""
    return [self.offline.held_out, self.offline.pairs, self.offline.require]

  def summary(self, before: dict[str, float], after: dict[str, float]) -> str:
    """Returns the accuracy before and after a run in words."""
    if "pair_accuracy" not in after:
      return "not evaluated, since offline.held_out=0"
    start = f"{before['pair_accuracy']:.1%} -> " if "pair_accuracy" in before else ""
    return f"pair accuracy {start}{after['pair_accuracy']:.1%} on {after['pairs']} held-out pairs"
