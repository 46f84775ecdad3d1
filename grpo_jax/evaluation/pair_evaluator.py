"""Evaluation of a reward model during a run: how it tells the better of two, on pairs that it is
not trained on.
"""

import functools
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.reward_models import scores
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks
from grpo_jax.types import Rollouts


class PairEvaluator:
  """Evaluates the parameters of a reward model on held-out pairs, before, every `eval.every` steps
  and after.
  """

  def __init__(self, config: ConfigDict, model: build.Model):
    """Begins without pairs; `take` gives it some.

    Raises:
      SettingError: an `eval.batch` that the mesh does not divide.
    """
    self.cfg, self.offline = config.eval, config.offline
    checks.check_eval_batch(config, model.layout)
    self.decoder, self.sizes = model.decoder, build.sizes(config, model.layout, microbatches=1)
    self.pairs: Rollouts | None = None

  def take(self, pairs: Rollouts) -> None:
    """Evaluates on these from now on, `[N, 2, ...]` numpy, but for empty ones, which were too long.

    Raises:
      SettingError: all are empty, where some are to be held out.
    """
    real = np.flatnonzero(pairs.lengths.all(axis=1))
    if self.offline.held_out and not len(real):
      raise SettingError(
        f"offline.held_out={self.offline.held_out}: all of these pairs are too long; use a larger "
        "data.max_prompt_length or sampler.max_length"
      )
    self.pairs = jax.tree.map(lambda x: x[real], pairs)

  def __call__(
    self, writer: Writer, params: Any, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Metrics of `params` after `step` steps (`reward_models.pair_metrics`), written and shown.

    Without held-out pairs (`offline.held_out=0`) there are none.
    """
    if self.pairs is None or not len(self.pairs.lengths):
      return {}
    with writer.phase("eval"):
      show, sizes = functools.partial(writer.progress, "eval"), self.sizes.fresh()
      each = scores.scores_of_all(self.decoder, params, self.pairs, sizes, self.cfg.batch, show)
    found = scores.pair_metrics(scores.margins(each, self.pairs.lengths)) | {"pairs": len(each)}
    writer.evaluation(step, {f"eval/{name}": value for name, value in found.items()})
    return found

  def contents(self) -> dict[str, str]:
    """Returns {}: what is held out is of the file or the samples that the run is trained on."""
    return {}

  def tested(self) -> list[Any]:
    """What an evaluation is of: how many prompts of which pairs."""
    return [self.offline.held_out, self.offline.pairs, self.offline.require]

  def said(self, before: dict[str, float], after: dict[str, float]) -> str:
    """The evaluations before and after a run, in words."""
    if "pair_accuracy" not in after:
      return "not evaluated, since offline.held_out=0"
    was = f"{before['pair_accuracy']:.1%} -> " if "pair_accuracy" in before else ""
    return f"pair accuracy {was}{after['pair_accuracy']:.1%} on {after['pairs']} held-out pairs"
