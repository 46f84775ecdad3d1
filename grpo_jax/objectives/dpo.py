"""DPO (arXiv 2305.18290): a group is the pair [chosen, rejected].

    loss = -log sigma(beta (h_chosen - h_rejected)),    h = sum over tokens of log pi - log pi_ref

The coefficient of grad log pi is +-beta sigma(beta (h_rejected - h_chosen)) on every token of the pair.
DeepSeekMath's table drops beta and divides by |o|. A pair's loss is spread over its tokens with weights that add up
to 1 / pairs, so the only aggregation that is DPO is "sequence_mean".
"""

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.ops import masked, preferences
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("pairs",)
READS = frozenset({"beta", "label_smoothing"})


def needs(cfg) -> frozenset[str]:
  """The reference.

  Raises:
    SettingError: another aggregation, or beta 0.
  """
  if cfg.aggregation != "sequence_mean":
    raise SettingError(f"aggregation={cfg.aggregation!r} with objective='dpo': use 'sequence_mean'")
  if not cfg.beta:
    raise SettingError(f"beta={cfg.beta!r} with objective='dpo': use a positive number, such as 0.1")
  return frozenset({"ref"})


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantage +1 on the chosen completion and -1 on the rejected one.

  Raises:
    SettingError: groups that are not pairs, or no reference log-probs.
  """
  if rollouts.tokens.shape[1] != 2:
    raise SettingError(
      f"groups of {rollouts.tokens.shape[1]} with objective={cfg.name!r}: it takes pairs, [chosen, rejected]"
    )
  common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name)
  mask = common.completion_mask(rollouts, mask_truncated=False)
  return common.train_batch(common.written(rollouts), cfg, jnp.array([1.0, -1.0])[None, :, None] * mask, mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """sum(weights * the loss of the token's pair), and its metrics (implied rewards, margin, accuracy)."""
  logprobs, _, ref = common.policies(outputs, batch)
  h = jnp.sum(logprobs - ref, axis=2)
  pair_loss = preferences.dpo(h[:, 0], h[:, 1], cfg.beta, cfg.label_smoothing)
  real = jnp.any(batch.lengths > 0, axis=1).astype(jnp.float32)
  reward = jax.lax.stop_gradient(cfg.beta * h)
  metrics = common.policy_metrics(outputs, batch)
  for name, value in {
    "reward_chosen": reward[:, 0],
    "reward_rejected": reward[:, 1],
    "reward_margin": reward[:, 0] - reward[:, 1],
    "pair_accuracy": (reward[:, 0] > reward[:, 1]) * 1.0,
  }.items():
    metrics[name] = (masked.masked_sum(value, real), jnp.sum(real))
  return jnp.sum(batch.weights * pair_loss[:, None, None]), metrics
