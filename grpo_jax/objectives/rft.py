"""Rejection sampling fine-tuning (arXiv 2308.01825): likelihood of correct samples. Coefficient 1 if correct, else 0.

One file for RFT and online RFT: they differ in the data source (samples of the SFT model, once; samples of the live
policy), which is the loop's business. A completion is correct if its rewards add up to more than `threshold`. Wrong
ones count in the denominator: a batch with few correct answers makes a small step.
"""

import jax.numpy as jnp

from grpo_jax.objectives import common, sft
from grpo_jax.types import Rollouts, TrainBatch

needs = sft.needs
loss = sft.loss
DATA = ("live", "samples")
READS = frozenset({"mask_truncated", "mismatch"})


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantage 1 on the tokens of correct completions, 0 on the others.

  Raises:
    SettingError: no rewards.
  """
  common.require(rollouts.rewards, "rewards", cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  correct = (common.scores(rollouts) > cfg.threshold).astype(jnp.float32)
  return common.train_batch(rollouts, cfg, correct[..., None] * mask, mask)
