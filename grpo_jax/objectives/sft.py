"""Supervised fine-tuning: the log-likelihood of the completions given. Coefficient 1 on every token.

Data source: a person's answers (or anyone's): groups of one. No reward, no reference, no old policy.
"""

import jax.numpy as jnp

from grpo_jax.objectives import common
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("solutions",)
READS = frozenset({"mask_truncated"})


def needs(cfg) -> frozenset[str]:
  """No other forward pass."""
  del cfg
  return frozenset()


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantage 1 on every token of every completion."""
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  return common.train_batch(common.written(rollouts), cfg, mask, mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """-A log pi, weighted: sum(weights * token loss), and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  gain = batch.advantages * logprobs * common.mismatch(old, batch, cfg)
  return -jnp.sum(batch.weights * gain), common.policy_metrics(outputs, batch)
