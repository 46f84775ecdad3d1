"""Supervised fine-tuning: the log-likelihood of completions. Coefficient 1 on every token.

Its data are written answers, in groups of one. It needs no reward, reference or old policy.
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of SFT."""
  return shared_settings.join(shared_settings.truncation(), shared_settings.aggregation())


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with advantage 1 on every token of every completion."""
  del advantages
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  weights = common.weights(mask, rollouts.lengths, cfg)
  return common.train_batch(common.written(rollouts), mask, mask, weights)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns sum(weights * -A log pi) and its metrics."""
  del cfg
  logprobs, _, _ = common.policies(outputs, batch)
  return -jnp.sum(batch.weights * (batch.advantages * logprobs)), metrics.policy_metrics(
    outputs, batch
  )


OBJECTIVE = Objective(loss, prepare, settings, data=("solutions",))
