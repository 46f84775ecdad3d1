"""Process reward model (Math-Shepherd, arXiv 2312.08935): a sigmoid on each step's last token.

The label of a step, in [0, 1], is the "reward" given at its last token: by hand, by a rule, or from
continuations of the step (loops/reward_data/continuations.py). Only those tokens are trained, so
the mask is `given`, and aggregation="sequence_mean" is a mean over each solution's steps,
"token_mean" over all steps. The scores are those after each token, as in reward_model.py.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Rollouts, Scores, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of a process reward model."""
  return shared_settings.aggregation()


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with the labels as advantages, on the steps' last tokens."""
  del advantages
  labels, given = common.scored(rollouts, cfg.name)
  mask = given.astype(jnp.float32)
  labels = jnp.where(given, labels, 0.0)
  return common.train_batch(rollouts, labels, mask, common.weights(mask, rollouts.lengths, cfg))


def loss(outputs: Scores, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns sum(weights * cross-entropy of each step) and its metrics."""
  del cfg
  scores = common.on_mask(outputs.scores, batch.mask)
  labels = batch.advantages
  step_loss = preferences.step_loss(scores, labels)
  agrees = jax.lax.stop_gradient((scores > 0) == (labels > 0.5)) * 1.0
  reported = {
    "step_loss": metrics.token_mean(jax.lax.stop_gradient(step_loss), batch.mask),
    "step_accuracy": metrics.token_mean(agrees, batch.mask),
  }
  return jnp.sum(batch.weights * step_loss), reported


OBJECTIVE = Objective(loss, prepare, settings, data=("steps",), trains_reward_model=True)
