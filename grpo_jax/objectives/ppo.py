"""PPO with a critic (arXiv 1707.06347), GAE (1506.02438) and the KL in the reward, as InstructGPT
set it up.

    r_t = -beta (log pi_old - log pi_ref) + the given rewards where they are given (usually the last
    token)
    delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum over l of (gamma lam)^l delta_{t+l}
    J = min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    value loss = value_coef / 2 max((V - R)^2, (clip(V, V_old -+ value_clip) - R)^2),    R = A + V_old

V after the last token is 0 where the completion ended by itself. Where it was cut off, the critic's
last value stands
in for it: the state after the last token was not evaluated.

`group_baseline=True` uses a group and a critic together: the group's mean is taken off the given
rewards first, so that the critic only has to learn what the mean does not explain. Advantages are
whitened over the batch if `whiten`.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Metrics, Outputs, Rollouts, TrainBatch

DATA = ("live",)
TEACHER = ""
importance_ratio = common.token_ratio
weights = common.weights
bounds = common.clip_bounds
live_advantages = common.prepared_advantages
flat = common.flat_never


def settings() -> ConfigDict:
  """Returns the settings of PPO; its critic's learning rate is learner.critic_lr."""
  c = ConfigDict()
  c.beta = 0.0  # weight of the KL to the reference in the rewards; 0: no reference is held or run
  c.gamma = 1.0  # discount
  c.lam = 0.95  # GAE's lambda
  c.whiten = True  # advantages to mean 0, std 1 over the batch
  c.group_baseline = False  # take the group's mean off the rewards first
  c.update(common.clip_settings())  # clip_low, clip_high, clip_delta
  c.value_clip = 0.2  # values are clipped to old values -+ value_clip; 0: off
  c.value_coef = 0.5  # weight of the value loss
  # mask_truncated, aggregation, max_length, mismatch, mismatch_level, mismatch_cap
  c.update(common.sampled_settings())
  return c


def check(cfg: Any) -> None:
  """Refuses unknown names, numbers out of range, and a two-sided clip inside the ordinary one.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  common.check_sampled(cfg)
  common.check_clip(cfg)
  common.check_at_least(cfg, 0, "beta", "value_clip", "value_coef")
  common.check_between(cfg, 0, 1, "gamma", "lam")


def needs(cfg: Any) -> frozenset[str]:
  """Returns the critic's pass, and those of the two policies where there is a KL in the rewards."""
  return frozenset({"values", "ref", "old"}) if cfg.beta else frozenset({"values"})


def token_rewards(rollouts: Rollouts, cfg: Any) -> Array:
  """Returns the given rewards, less the group's mean if asked, less beta times each token's k1. [P,
  G, L].
  """
  rewards = jnp.where(rollouts.given, common.require(rollouts.rewards, "rewards", cfg.name), 0.0)
  if cfg.group_baseline:
    rewards = adv.group_relative(rewards, rollouts.given, scale="none")
  if cfg.beta:
    inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
    old = common.on_mask(common.require(rollouts.old_logprobs, "old_logprobs", cfg.name), inside)
    ref = common.on_mask(common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name), inside)
    rewards = rewards - cfg.beta * divergences.k1(old, ref)
  return rewards


def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
  """Returns the batch with advantages by GAE, and the critic's targets and old values in `extra`.

  Raises:
    SettingError: no rewards, no critic values, or no reference log-probs although beta > 0.
  """
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
  values = common.on_mask(common.require(rollouts.old_values, "old_values", cfg.name), inside)
  last = common.last_token(rollouts.lengths, rollouts.tokens.shape[2])
  cut_off = rollouts.ended == TRUNCATED
  bootstrap = jnp.where(cut_off, jnp.sum(values * last, axis=2), 0.0)
  advantages = adv.gae(
    token_rewards(rollouts, cfg), values, rollouts.lengths, bootstrap, cfg.gamma, cfg.lam
  )
  extra = {
    "returns": jax.lax.stop_gradient(advantages + values),
    "old_values": jax.lax.stop_gradient(values),
  }
  if cfg.whiten:
    advantages = masked.whiten(advantages, mask)
  return common.train_batch(rollouts, advantages, mask, weights(mask, rollouts.lengths, cfg), extra)


def value_loss(values: Array, old_values: Array, returns: Array, value_clip: float) -> Array:
  """Returns half the larger of the squared errors with and without clipping around the old values,
  elementwise.

  values, old_values, returns: of one shape, usually [P, G, L]. value_clip: 0 for no clip.
  """
  chex.assert_equal_shape((values, old_values, returns))
  error = (values - returns) ** 2
  if value_clip:
    near = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
    error = jnp.maximum(error, (near - returns) ** 2)
  return 0.5 * error


def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
  """Returns -J plus the value loss of a slice of the batch, with the same weights for both, and its
  metrics.
  """
  logprobs, old, _ = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta) * common.mismatch(
    old, batch, cfg
  )
  values = common.on_mask(common.require(outputs.values, "values", cfg.name), batch.mask)
  old_values, returns = batch.extra["old_values"], batch.extra["returns"]
  critic = value_loss(values, old_values, returns, cfg.value_clip)
  found = metrics.of_policy(outputs, batch)
  found |= metrics.of_ratio(
    outputs, batch, cfg, importance_ratio, (lower, upper), gain, cfg.clip_delta
  )
  found |= jax.lax.stop_gradient(
    {
      "value_loss": metrics.token_mean(critic, batch.mask),
      "value": metrics.token_mean(values, batch.mask),
      "return": metrics.token_mean(returns, batch.mask),
    }
  )
  return jnp.sum(batch.weights * (cfg.value_coef * critic - gain)), found
