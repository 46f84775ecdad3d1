"""PPO with a critic (arXiv 1707.06347), GAE (1506.02438) and the KL in the reward, as InstructGPT set it up.

    r_t = -beta (log pi_old - log pi_ref) + the given rewards where they are given (usually the last token)
    delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum over l of (gamma lam)^l delta_{t+l}
    J = min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    value loss = value_coef / 2 max((V - R)^2, (clip(V, V_old -+ value_clip) - R)^2),    R = A + V_old

V after the last token is 0 where the completion ended by itself. Where it was cut off, the critic's last value stands
in for it: the state after the last token was not evaluated.

`group_baseline=True` uses a group and a critic together: the group's mean is taken off the given rewards first, so
that the critic only has to learn what the mean does not explain. Advantages are whitened over the batch if `whiten`.
"""

import jax
import jax.numpy as jnp

from grpo_jax.objectives import common, grpo
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Metrics, Outputs, Rollouts, TrainBatch

importance_ratio = common.token_ratio
DATA = grpo.DATA
READS = frozenset({"beta", "clip_delta", "group_baseline", "mask_truncated", "mismatch"})


def needs(cfg) -> frozenset[str]:
  """The critic's values always; the two policies' log-probs for the KL in the reward."""
  grpo.check(cfg)
  return frozenset({"values", "ref", "old"}) if cfg.beta else frozenset({"values"})


def token_rewards(rollouts: Rollouts, cfg) -> Array:
  """[P, G, L]: the given rewards, less the group's mean if asked, less beta times each token's k1."""
  rewards = jnp.where(rollouts.given, common.require(rollouts.rewards, "rewards", cfg.name), 0.0)
  if cfg.group_baseline:
    rewards = adv.group_relative(rewards, rollouts.given, scale="none")
  if cfg.beta:
    inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
    old = common.on_mask(common.require(rollouts.old_logprobs, "old_logprobs", cfg.name), inside)
    ref = common.on_mask(common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name), inside)
    rewards = rewards - cfg.beta * divergences.k1(old, ref)
  return rewards


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantages by GAE, and the critic's targets and old values in `extra`.

  Raises:
    SettingError: no rewards, no critic values, or no reference log-probs although beta > 0.
  """
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
  values = common.on_mask(common.require(rollouts.old_values, "old_values", cfg.name), inside)
  last = common.last_token(rollouts.lengths, rollouts.tokens.shape[2])
  cut_off = rollouts.ended == TRUNCATED
  bootstrap = jnp.where(cut_off, jnp.sum(values * last, axis=2), 0.0)
  advantages = adv.gae(token_rewards(rollouts, cfg), values, rollouts.lengths, bootstrap, cfg.gamma, cfg.lam)
  extra = {
    "returns": jax.lax.stop_gradient(advantages + values),
    "old_values": jax.lax.stop_gradient(values),
    "zero_variance": common.zero_variance(rollouts),
  }
  if cfg.whiten:
    advantages = masked.whiten(advantages, mask)
  return common.train_batch(rollouts, cfg, advantages, mask, extra)


def value_loss(values: Array, old_values: Array, returns: Array, value_clip: float) -> Array:
  """Half the larger of the squared errors with and without clipping around the old values. [P, G, L]; 0: no clip."""
  error = (values - returns) ** 2
  if value_clip:
    near = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
    error = jnp.maximum(error, (near - returns) ** 2)
  return 0.5 * error


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """-J plus the value loss of a slice of the batch, with the same weights; the critic's gradient is in the values."""
  logprobs, old, _ = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta) * common.mismatch(old, batch, cfg)
  values = common.on_mask(common.require(outputs.values, "values", cfg.name), batch.mask)
  old_values, returns = batch.extra["old_values"], batch.extra["returns"]
  critic = value_loss(values, old_values, returns, cfg.value_clip)
  metrics = common.policy_metrics(outputs, batch)
  metrics |= common.ratio_metrics(outputs, batch, cfg, importance_ratio, gain, cfg.clip_delta)
  metrics |= jax.lax.stop_gradient(
    {
      "value_loss": common.token_mean(critic, batch.mask),
      "value": common.token_mean(values, batch.mask),
      "return": common.token_mean(returns, batch.mask),
    }
  )
  return jnp.sum(batch.weights * (cfg.value_coef * critic - gain)), metrics
