"""Outcome reward model: a scalar on a completion's last token, Bradley-Terry on pairs [chosen, rejected].

    loss = -log sigma(score_chosen - score_rejected)

`outputs.values` here are the scalar head *after* reading each token, entry t from the hidden state at token t:
without the one-token shift of log-probs and of PPO's critic, so that the last token is read as well. Aggregation must
be "sequence_mean": a pair's loss is spread over its tokens with weights that add up to 1 / pairs.
"""

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.ops import masked, preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("pairs",)
READS = frozenset()


def needs(cfg) -> frozenset[str]:
  """No other forward pass.

  Raises:
    SettingError: another aggregation.
  """
  if cfg.aggregation != "sequence_mean":
    raise SettingError(f"aggregation={cfg.aggregation!r} with objective={cfg.name!r}: use 'sequence_mean'")
  return frozenset()


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantage +1 on the chosen completion and -1 on the rejected one (a label only).

  Raises:
    SettingError: groups that are not pairs.
  """
  if rollouts.tokens.shape[1] != 2:
    raise SettingError(
      f"groups of {rollouts.tokens.shape[1]} with objective={cfg.name!r}: it takes pairs, [chosen, rejected]"
    )
  mask = common.completion_mask(rollouts, mask_truncated=False)
  return common.train_batch(rollouts, cfg, jnp.array([1.0, -1.0])[None, :, None] * mask, mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """sum(weights * the loss of the token's pair), and its metrics."""
  values = common.require(outputs.values, "values", cfg.name)
  last = common.last_token(batch.lengths, values.shape[2])
  scores = jnp.sum(jnp.where(last, values, 0.0), axis=2)
  pair_loss = preferences.bradley_terry(scores[:, 0], scores[:, 1])
  real = jnp.any(batch.lengths > 0, axis=1).astype(jnp.float32)
  margin = jax.lax.stop_gradient(scores[:, 0] - scores[:, 1])
  metrics = {
    "pair_loss": (masked.masked_sum(pair_loss, real), jnp.sum(real)),
    "pair_accuracy": (masked.masked_sum((margin > 0) * 1.0, real), jnp.sum(real)),
    "reward_margin": (masked.masked_sum(margin, real), jnp.sum(real)),
  }
  return jnp.sum(batch.weights * pair_loss[:, None, None]), metrics
