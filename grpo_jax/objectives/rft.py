"""Rejection sampling fine-tuning (arXiv 2308.01825): coefficient 1 if correct, else 0.

RFT and online RFT are this one objective on other data: samples that the SFT model made once, or
samples of the live policy. A completion is correct if its rewards add up to more than `threshold`.
Wrong ones count in the denominator, so a batch with few correct answers makes a small step.
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.ops import advantages as adv
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of RFT."""
  c = shared_settings.sampled()
  c.threshold = 0.5  # rewards that add up to more are correct
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses bad values, and to leave out what a negative advantage moves: there is none."""
  shared_settings.check(cfg)
  shared_settings.check_keep_condition(cfg, "always", "onwards")


def flat(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns which groups have no correct completion, [P] bool."""
  del advantages
  return ~jnp.any(_correct(rollouts, cfg), axis=1)


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with advantage 1 on the tokens of correct completions and 0 on the others."""
  del advantages
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  correct = _correct(rollouts, cfg).astype(jnp.float32)[..., None] * mask
  return common.train_batch(rollouts, correct, mask, common.weights(mask, rollouts.lengths, cfg))


def _correct(rollouts: Rollouts, cfg: ConfigDict) -> Array:
  """Returns which completions are correct, [P, G] bool; one without a reward is not."""
  rewards, given = common.scored(rollouts, cfg.name)
  return jnp.any(given, axis=2) & (adv.totals(rewards, given) > cfg.threshold)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns sum(weights * -A log pi) and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  gain = batch.advantages * logprobs * common.mismatch(logprobs, old, batch, cfg)
  reported = metrics.policy_metrics(outputs, batch) | metrics.kept(logprobs, old, batch, cfg)
  return -jnp.sum(batch.weights * gain), reported


OBJECTIVE = Objective(loss, prepare, settings, check, data=("live", "samples"), flat=flat)
