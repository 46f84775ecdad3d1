"""Outcome reward model: a scalar on a completion's last token, Bradley-Terry on pairs [chosen,
rejected].

    loss = -log sigma(score_chosen - score_rejected)

`outputs.values` here are the scores *after* reading each token, entry t from the hidden state at
token t: without the one-token shift of log-probs and of PPO's critic, so that the last token is
read as well. A pair's loss is spread over its tokens with weights that add up to 1 / pairs, so
there is no choice of an aggregation.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("pairs",)
TEACHER = ""
importance_ratio = None
weights = common.sequence_mean_weights
bounds = common.no_bounds
live_advantages = common.prepared_advantages
flat = common.flat_totals
needs = common.scores_alone


def settings() -> ConfigDict:
  """Returns no settings: there is nothing to choose."""
  return ConfigDict()


def check(cfg: Any) -> None:
  """Refuses nothing."""
  del cfg


def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
  """Returns the batch with advantage +1 on the chosen completion and -1 on the rejected one (a
  label only).

  Raises:
    SettingError: groups that are not pairs.
  """
  mask = common.completion_mask(rollouts, mask_truncated=False)
  return common.train_batch(
    rollouts, common.pair_signs(rollouts, cfg, mask), mask, weights(mask, rollouts.lengths, cfg)
  )


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns sum(weights * the loss of the token's pair) and its metrics."""
  values = common.require(outputs.values, "values", cfg.name)
  last = common.last_token(batch.lengths, values.shape[2])
  scores = jnp.sum(jnp.where(last, values, 0.0), axis=2)
  pair_loss = preferences.bradley_terry(scores[:, 0], scores[:, 1])
  margin = jax.lax.stop_gradient(scores[:, 0] - scores[:, 1])
  found = {
    "pair_loss": metrics.group_mean(pair_loss, batch.lengths),
    "pair_accuracy": metrics.group_mean((margin > 0) * 1.0, batch.lengths),
    "reward_margin": metrics.group_mean(margin, batch.lengths),
  }
  return jnp.sum(batch.weights * pair_loss[:, None, None]), found
