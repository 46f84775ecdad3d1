"""PPO with a critic (arXiv 1707.06347), GAE (1506.02438) and InstructGPT's KL in the reward.

    r_t        = -beta (log pi_old - log pi_ref) + the reward given at t (usually the last token)
    delta_t    = r_t + gamma V_{t+1} - V_t
    A_t        = sum over l of (gamma lam)^l delta_{t+l}
    J          = min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    R          = A + V_old, with critic_lam for lam
    value loss = value_coef / 2 max((V - R)^2, (clip(V, V_old -+ value_clip) - R)^2)

V after the last token is 0 if the completion ended by itself. If it was truncated, the critic's
last value is taken, since the state after the last token was not evaluated. An episode with an
environment is over at its limits, and its reward says what that costs: V is 0 after every one.

VAPO (2504.05118) is `lam_length=0.05`, `critic_lam=1`, `imitation=0.1`, clip_high=0.28 and
aggregation="token_mean":

    lam_length   lambda of A is max(0, 1 - 1 / (lam_length |o|)) for each completion
    critic_lam   lambda of R; it is `lam` unless set
    imitation    adds imitation * log pi, on the tokens of completions whose rewards add up to more
                 than 0.5, divided by the share of such tokens in the rollout

`group_baseline=True` uses a group and a critic together: the group's mean is subtracted from the
rewards first, so that the critic learns only the rest. Advantages are whitened over the batch if
`whiten`.
"""

import chex
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.advantages import RIGHT
from grpo_jax.objectives.base import Needs, Objective
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of PPO; its critic's learning rate is learner.critic_lr."""
  c = shared_settings.join(shared_settings.clipped(), shared_settings.entropy())
  c.gamma = 1.0  # discount
  c.lam = 0.95  # GAE's lambda
  c.lam_length = 0.0  # lambda by length: max(0, 1 - 1 / (lam_length |o|)); 0: lam for all
  c.critic_lam = c.get_ref("lam")  # lambda of the critic's targets
  c.imitation = 0.0  # weight of log pi on right completions, a mean over their tokens
  c.whiten = True  # advantages to mean 0, std 1 over the batch
  c.group_baseline = False  # take the group's mean off the rewards first
  c.value_clip = 0.2  # values are clipped to old values -+ value_clip; 0: off
  c.value_coef = 0.5  # weight of the value loss
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names, and numbers out of range."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "beta", "value_clip", "value_coef")
  shared_settings.check_at_least(cfg, 0, "lam_length", "imitation")
  shared_settings.check_between(cfg, 0, 1, "gamma", "lam", "critic_lam")


def needs(cfg: ConfigDict) -> Needs:
  """Returns the critic, and both policies where there is a KL in the rewards."""
  return Needs.CRITIC | Needs.REFERENCE | Needs.OLD_POLICY if cfg.beta else Needs.CRITIC


def token_rewards(rollouts: Rollouts, cfg: ConfigDict) -> Array:
  """Returns the rewards [P, G, L], less the group's mean if set, less beta times the k1."""
  rewards, given = common.scored(rollouts, cfg.name)
  rewards = jnp.where(given, rewards, 0.0)
  if cfg.group_baseline:
    rewards = adv.group_relative(rewards, given, scale="none")
  if cfg.beta:
    inside = common.sampled_mask(rollouts)
    old = common.on_mask(common.require(rollouts.old_logprobs, "old_logprobs", cfg.name), inside)
    ref = common.on_mask(common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name), inside)
    rewards = rewards - cfg.beta * divergences.k1(old, ref)
  return rewards


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with advantages by GAE; `extra` has the critic's targets and old values.

  A completion without a reward is left out: no reward is not a reward of 0.
  """
  del advantages
  judged = jnp.any(common.scored(rollouts, cfg.name)[1], axis=2)
  mask = common.completion_mask(rollouts, cfg.mask_truncated) * judged[..., None]
  inside = common.sampled_mask(rollouts)
  values = common.on_mask(common.require(rollouts.old_values, "old_values", cfg.name), inside)
  last = (jnp.cumsum(inside, axis=2) == jnp.sum(inside, axis=2, keepdims=True)) * inside
  goes_on = (rollouts.ended == TRUNCATED) & (rollouts.sampled is None)
  bootstrap = jnp.where(goes_on, jnp.sum(values * last, axis=2), 0.0)
  rewards = token_rewards(rollouts, cfg)

  def estimate(lam: float | Array) -> Array:
    return adv.gae(rewards, values, inside, bootstrap, cfg.gamma, lam)

  lengths = common.sampled_lengths(rollouts)
  gae = estimate(lam_by_length(lengths, cfg.lam_length) if cfg.lam_length else cfg.lam)
  extra = {
    "returns": jax.lax.stop_gradient(estimate(cfg.critic_lam) + values),
    "old_values": jax.lax.stop_gradient(values),
  }
  if cfg.imitation:
    right = mask * (adv.totals(*common.scored(rollouts, cfg.name)) > RIGHT)[..., None]
    extra["imitated"] = right * (jnp.sum(mask) / jnp.maximum(jnp.sum(right), 1.0))
  if cfg.whiten:
    gae = masked.whiten(gae, mask)
  weights = common.weights(mask, rollouts.lengths, cfg)
  return common.train_batch(rollouts, gae, mask, weights, extra)


def lam_by_length(lengths: Array, alpha: float) -> Array:
  """Returns max(0, 1 - 1 / (alpha |o|)) of each completion, [...] (VAPO, arXiv 2504.05118)."""
  return jnp.maximum(0.0, 1.0 - 1.0 / (alpha * jnp.maximum(lengths, 1)))


def value_loss(values: Array, old_values: Array, returns: Array, value_clip: float) -> Array:
  """Returns half the larger of the squared errors with and without clipping around old values.

  Arrays have one shape, usually [P, G, L]; value_clip=0 clips nothing.
  """
  chex.assert_equal_shape((values, old_values, returns))
  error = (values - returns) ** 2
  if value_clip:
    near = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
    error = jnp.maximum(error, (near - returns) ** 2)
  return 0.5 * error


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J plus the value loss, with the same weights for both, and the metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.clip_bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta) * common.mismatch(
    logprobs, old, batch, cfg
  )
  bonus = common.entropy_bonus(outputs, batch, cfg)
  if cfg.imitation:
    bonus += cfg.imitation * batch.extra["imitated"] * logprobs
  values = common.on_mask(common.require(outputs.values, "values", cfg.name), batch.mask)
  old_values, returns = batch.extra["old_values"], batch.extra["returns"]
  critic = value_loss(values, old_values, returns, cfg.value_clip)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(
    outputs, batch, cfg, common.token_ratio, (lower, upper), gain, cfg.clip_delta
  )
  reported |= jax.lax.stop_gradient(
    {
      "value_loss": metrics.token_mean(critic, batch.mask),
      "value": metrics.token_mean(values, batch.mask),
      "return": metrics.token_mean(returns, batch.mask),
    }
  )
  return jnp.sum(batch.weights * (cfg.value_coef * critic - gain - bonus)), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs,
  importance_ratio=common.token_ratio,
  bounds=common.clip_bounds,
  flat=common.flat_never,
)
