"""Supervised fine-tuning: the log-likelihood of the completions given. Coefficient 1 on every
token.

Its data are answers that a person (or anyone) wrote: groups of one. It needs no reward, reference
or old policy.
"""

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("solutions",)
TEACHER = ""
importance_ratio = None
weights = common.weights
bounds = common.no_bounds
live_advantages = common.prepared_advantages
flat = common.flat_totals
needs = common.no_other_pass
check = common.check_aggregation


def settings() -> ConfigDict:
  """Returns the settings of SFT."""
  c = common.aggregation_settings()  # aggregation, max_length
  c.mask_truncated = False  # leave completions that were cut off out of the loss
  return c


def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
  """Returns the batch with advantage 1 on every token of every completion."""
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  return common.train_batch(
    common.written(rollouts), mask, mask, weights(mask, rollouts.lengths, cfg)
  )


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns sum(weights * -A log pi) and its metrics."""
  del cfg
  logprobs, _, _ = common.policies(outputs, batch)
  return -jnp.sum(batch.weights * (batch.advantages * logprobs)), metrics.of_policy(outputs, batch)
