"""Outcome reward model: a scalar on the last token, Bradley-Terry on pairs [chosen, rejected].

    loss = -log sigma(score_chosen - score_rejected)

The scores are those *after* each token: entry t comes from the hidden state at token t, without the
one-token shift of log-probs and of PPO's critic. A pair's loss is spread over its tokens with
weights that add up to 1 / pairs, so there is no choice of an aggregation.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.objectives.base import Objective
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Rollouts, Scores, TrainBatch


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with +1 on the chosen completion and -1 on the rejected one as labels."""
  del advantages
  mask = common.completion_mask(rollouts, mask_truncated=False)
  weights = common.sequence_mean_weights(mask, rollouts.lengths, cfg)
  return common.train_batch(rollouts, common.pair_signs(rollouts, cfg, mask), mask, weights)


def loss(outputs: Scores, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns sum(weights * the loss of the token's pair) and its metrics."""
  del cfg
  last = common.last_token(batch.lengths, outputs.scores.shape[2])
  scores = jnp.sum(jnp.where(last, outputs.scores, 0.0), axis=2)
  pair_loss = preferences.bradley_terry(scores[:, 0], scores[:, 1])
  margin = jax.lax.stop_gradient(scores[:, 0] - scores[:, 1])
  reported = {
    "pair_loss": metrics.group_mean(pair_loss, batch.lengths),
    "pair_accuracy": metrics.group_mean(preferences.won(margin), batch.lengths),
    "reward_margin": metrics.group_mean(margin, batch.lengths),
  }
  return jnp.sum(batch.weights * pair_loss[:, None, None]), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings=ConfigDict,  # none: there is nothing to choose
  data=("pairs",),
  trains_reward_model=True,
  weights=common.sequence_mean_weights,
)
