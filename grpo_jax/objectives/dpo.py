"""DPO (arXiv 2305.18290): a group is the pair [chosen, rejected].

    loss = -log sigma(beta (h_chosen - h_rejected)),    h = sum over tokens of log pi - log pi_ref

The coefficient of grad log pi is +-beta sigma(beta (h_rejected - h_chosen)) on every token of the
pair. DeepSeekMath's table drops beta and divides by |o|. A pair's loss is spread over its tokens
with weights that add up to 1 / pairs, so there is no choice of an aggregation.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective, needs_reference
from grpo_jax.ops import preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of DPO."""
  c = ConfigDict()
  c.beta = 0.1  # how strongly the reference holds: an inverse temperature of the implied reward
  c.label_smoothing = 0.0  # probability that a label is wrong (conservative DPO)
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses a beta that is not positive, and labels that are more often wrong than right."""
  if not cfg.beta or not cfg.beta > 0:
    raise SettingError(
      f"beta={cfg.beta!r} with objective='dpo': use a positive number, such as 0.1"
    )
  shared_settings.check_between(cfg, 0, 0.5, "label_smoothing")


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with advantage +1 on the chosen completion and -1 on the rejected one."""
  del advantages
  mask = common.completion_mask(rollouts, mask_truncated=False)
  signs = common.pair_signs(rollouts, cfg, mask)
  common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name)
  weights = common.sequence_mean_weights(mask, rollouts.lengths, cfg)
  return common.train_batch(common.written(rollouts), signs, mask, weights)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns sum(weights * the loss of the token's pair) and its metrics."""
  logprobs, _, ref = common.policies(outputs, batch)
  h = jnp.sum(logprobs - common.require(ref, "ref_logprobs", cfg.name), axis=2)
  pair_loss = preferences.dpo(h[:, 0], h[:, 1], cfg.beta, cfg.label_smoothing)
  reward = jax.lax.stop_gradient(cfg.beta * h)
  reported = metrics.policy_metrics(outputs, batch)
  for name, value in {
    "reward_chosen": reward[:, 0],
    "reward_rejected": reward[:, 1],
    "reward_margin": reward[:, 0] - reward[:, 1],
    "pair_accuracy": preferences.won(reward[:, 0] - reward[:, 1]),
  }.items():
    reported[name] = metrics.group_mean(value, batch.lengths)
  return jnp.sum(batch.weights * pair_loss[:, None, None]), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs_reference,
  data=("pairs",),
  weights=common.sequence_mean_weights,
)
