"""TPO (arXiv 2604.06159): the probabilities of a group's completions are moved to a target.

    s = sum over tokens of log pi, of each completion
    p = softmax of s over the group
    q = softmax over the group of s_old + u / eta, where u is (r - mean) / std with ddof = 0
    J = mean over groups of sum_i q_i log p_i

The coefficient of grad log pi is q_i - p_i on every token of completion i, without a 1/|o|. It adds
up to 0 in a group, and the policy rests where p = q. A group of equal rewards pulls back to where
it began, and is not dropped. A truncated completion that `mask_truncated` leaves out has no share
of the probability; its reward counts in the mean and the std. One without a reward counts nowhere.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective, needs_old_policy
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import masked
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

EPS = 1e-6  # a smaller std counts as 0, as in the authors' code


def settings() -> ConfigDict:
  """Returns the settings of TPO."""
  c = shared_settings.truncation()
  c.eta = 1.0  # the larger, the nearer is the target to where the group began
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses an eta that has no target."""
  shared_settings.check_at_least(cfg, 1e-6, "eta")


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with u as advantages and the target q of each completion."""
  del advantages
  rewards, given = common.scored(rollouts, cfg.name)
  real = jnp.any(given, axis=2) & (rollouts.lengths > 0)
  mask = common.completion_mask(rollouts, cfg.mask_truncated) * real[..., None]
  total = jnp.asarray(adv.totals(rewards, given))
  std = masked.masked_std(total, real, axis=1, ddof=0, keepdims=True)
  centred = total - masked.masked_mean(total, real, axis=1, keepdims=True)
  u = jnp.where(real & (std > EPS), centred / jnp.maximum(std, EPS), 0.0)
  old = common.require(rollouts.old_logprobs, "old_logprobs", cfg.name)
  q = of_group(jnp.sum(common.on_mask(old, mask), axis=2) + u / cfg.eta, mask)
  return common.train_batch(
    rollouts,
    u[..., None] * mask,
    mask,
    common.prompt_sum_weights(mask, rollouts.lengths, cfg),
    {"target": q},
  )


def flat(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns whether a group has nothing to move to, [P]: it is one completion, and p = q = 1."""
  return common.flat_never(rollouts, cfg, advantages) | (rollouts.tokens.shape[1] == 1)


def of_group(scores: Array, mask: Array) -> Array:
  """Returns softmax over the completions of each group with a token on the mask, [P, G]; else 0."""
  real = jnp.any(mask > 0, axis=2)
  # a finite number: a group of none would be NaN
  return jnp.where(real, jax.nn.softmax(jnp.where(real, scores, -1e30), axis=1), 0.0)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns a loss of a slice of the batch with that gradient, and its metrics."""
  del cfg
  logprobs, _, _ = common.policies(outputs, batch)
  p = of_group(jnp.sum(logprobs, axis=2), batch.mask)
  coefficient = jax.lax.stop_gradient(batch.extra["target"] - p)[..., None]
  gain = coefficient * logprobs
  return -jnp.sum(batch.weights * gain), metrics.policy_metrics(outputs, batch)


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs_old_policy,
  weights=common.prompt_sum_weights,
  flat=flat,
)
