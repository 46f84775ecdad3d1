"""Process reward model (Math-Shepherd, arXiv 2312.08935): the sigmoid of a scalar on each step's last token.

The label of a step, in [0, 1], is the "reward" given at its last token: by hand, or from continuations of the step
(`preferences.soft_labels`, `preferences.hard_labels`). Only those tokens are trained, so the mask is `given`, and
aggregation="sequence_mean" is a mean over each solution's steps, "token_mean" over all steps.

`outputs.values` are the scalar head after reading each token, as in reward_model.py.
"""

import jax
import jax.numpy as jnp

from grpo_jax.objectives import common
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("samples",)
READS = frozenset()


def needs(cfg) -> frozenset[str]:
  """No other forward pass."""
  del cfg
  return frozenset()


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """The labels as advantages, on the steps' last tokens.

  Raises:
    SettingError: no labels.
  """
  labels = common.require(rollouts.rewards, "rewards (the steps' labels)", cfg.name)
  mask = rollouts.given.astype(jnp.float32)
  return common.train_batch(rollouts, cfg, jnp.where(rollouts.given, labels, 0.0), mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """sum(weights * cross-entropy of each step), and its metrics."""
  values = common.on_mask(common.require(outputs.values, "values", cfg.name), batch.mask)
  labels = batch.advantages
  step_loss = preferences.step_loss(values, labels)
  agrees = jax.lax.stop_gradient((values > 0) == (labels > 0.5)) * 1.0
  metrics = {
    "step_loss": common.token_mean(jax.lax.stop_gradient(step_loss), batch.mask),
    "step_accuracy": common.token_mean(agrees, batch.mask),
  }
  return jnp.sum(batch.weights * step_loss), metrics
