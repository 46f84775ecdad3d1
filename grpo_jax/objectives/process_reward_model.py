"""Process reward model (Math-Shepherd, arXiv 2312.08935): the sigmoid of a scalar on each step's
last token.

The label of a step, in [0, 1], is the "reward" given at its last token: by hand, by a rule, or from
continuations of the step (loops/continuations.py). Only those tokens are trained, so the mask is
`given`, and aggregation="sequence_mean" is a mean over each solution's steps, "token_mean" over all
steps.

`outputs.values` are the scores after reading each token, as in reward_model.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("steps",)
TEACHER = ""
importance_ratio = None
weights = common.weights
bounds = common.no_bounds
live_advantages = common.prepared_advantages
flat = common.flat_totals
needs = common.scores_alone
check = common.check_aggregation


def settings() -> ConfigDict:
  """Returns the settings of a process reward model."""
  return common.aggregation_settings()  # aggregation, max_length


def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
  """Returns the batch with the labels as advantages, on the steps' last tokens.

  Raises:
    SettingError: no labels.
  """
  labels = common.require(rollouts.rewards, "rewards (the steps' labels)", cfg.name)
  mask = rollouts.given.astype(jnp.float32)
  advantages = jnp.where(rollouts.given, labels, 0.0)
  return common.train_batch(rollouts, advantages, mask, weights(mask, rollouts.lengths, cfg))


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns sum(weights * cross-entropy of each step) and its metrics."""
  values = common.on_mask(common.require(outputs.values, "values", cfg.name), batch.mask)
  labels = batch.advantages
  step_loss = preferences.step_loss(values, labels)
  agrees = jax.lax.stop_gradient((values > 0) == (labels > 0.5)) * 1.0
  found = {
    "step_loss": metrics.token_mean(jax.lax.stop_gradient(step_loss), batch.mask),
    "step_accuracy": metrics.token_mean(agrees, batch.mask),
  }
  return jnp.sum(batch.weights * step_loss), found
