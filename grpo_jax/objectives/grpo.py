"""GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3 and 21), with outcome and process supervision in one path.

    J = mean over completions of the mean over tokens of
          min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) - beta k3(pi, pi_ref)
    A[t] = sum over given rewards j >= t of (r[j] - mean(R)) / (std(R) + eps)

At pi = pi_old the coefficient of grad log pi is A + beta (pi_ref / pi - 1).

Settings of this file that have their own name in the literature:

    Dr.GRPO (2503.20783)   aggregation="constant", scale="none", beta=0
    DAPO (2503.14476)      aggregation="group_token_mean" ("token_mean" is TRL's reading), clip_high=0.28, beta=0, the
                           overlong reward of rewards/length.py, and dynamic sampling, the rollouts' business
    two-sided clip         clip_delta > 1 + clip_high (2505.07291)
    GDPO (2601.05242)      reward_combination="gdpo"
    KL in the reward       kl_in_reward=True, with kl_estimator="k1"

Differences from TRL 1.16: the log-ratio is cut to [-20, 20] and d = log pi_ref - log pi at 20; k3 goes through expm1;
a group of equal rewards has A = 0 exactly, where TRL divides rounding noise by eps. The same: ddof 1, eps 1e-4.
"""

from collections.abc import Callable

import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch

importance_ratio = common.token_ratio
DATA = ("live",)
READS = frozenset(
  {"beta", "kl_weighted", "kl_in_reward", "kl_past_bound", "clip_delta", "reward_combination", "credit"}
  | {"mask_truncated", "mismatch"}
)


def needs(cfg) -> frozenset[str]:
  """The forward passes to make before `prepare`: no reference without a KL term.

  The old policy's is wanted here only by the KL in the reward; `learn` adds it when it makes several updates.
  """
  check(cfg)
  if not cfg.beta:
    return frozenset()
  return frozenset({"ref", "old"}) if cfg.kl_in_reward else frozenset({"ref"})


def check(cfg) -> None:
  """Refuses settings that contradict each other.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  if cfg.baseline == "leave_one_out" and cfg.scale != "none":
    raise SettingError(f"scale={cfg.scale!r} with baseline='leave_one_out': use scale='none'")
  if cfg.kl_in_reward and cfg.kl_weighted:
    raise SettingError("kl_weighted=True with kl_in_reward=True: a reward has no ratio; use one of the two")
  if cfg.clip_delta and cfg.clip_delta <= 1.0 + cfg.clip_high:
    raise SettingError(f"clip_delta={cfg.clip_delta}: use 0 (off) or more than 1 + clip_high = {1.0 + cfg.clip_high}")


def group_advantages(rollouts: Rollouts, cfg) -> Array:
  """[P, G, L]: the group-relative advantage of every token, without any KL."""
  rewards, given = rollouts.rewards, rollouts.given
  if cfg.reward_combination == "gdpo":
    parts = common.require(rollouts.parts, "parts (several rewards)", cfg.name)
    weights = jnp.asarray(tuple(cfg.reward_weights) or (1.0,) * parts.shape[2])
    relative = adv.gdpo(parts, weights, rollouts.lengths > 0, cfg.ddof, cfg.eps)
    relative = relative[..., None] * common.last_token(rollouts.lengths, rollouts.tokens.shape[2])
  else:
    relative = adv.group_relative(rewards, given, cfg.baseline, cfg.scale, cfg.ddof, cfg.eps)
  if cfg.credit == "prefix":
    return adv.prefix_credit(rollouts.tokens, rollouts.lengths, jnp.sum(relative, axis=2))
  return adv.returns_to_go(relative)


def kl_return(rollouts: Rollouts, cfg, mask: Array) -> Array:
  """[P, G, L]: the KL that is still to come from token t on, less the mean of the group's other samples there.

  In the reward with k1 and gamma = 1 this is the gradient of the whole sequence's KL, which per-token losses miss.
  The baseline leaves the sample itself out, so that it changes the variance and not the expectation.
  """
  old = common.on_mask(common.require(rollouts.old_logprobs, "old_logprobs", cfg.name), mask)
  ref = common.on_mask(common.require(rollouts.ref_logprobs, "ref_logprobs", cfg.name), mask)
  to_come = adv.returns_to_go(mask * divergences.kl_estimate(old, ref, cfg.kl_estimator))
  samples = to_come.shape[1]
  if samples == 1:
    return to_come
  return to_come - (jnp.sum(to_come, axis=1, keepdims=True) - to_come) / (samples - 1)


def prepare(rollouts: Rollouts, cfg) -> TrainBatch:
  """Advantages, masks and weights of a whole batch of rollouts.

  Raises:
    SettingError: no rewards, or no reference log-probs although beta > 0.
  """
  common.require(rollouts.rewards, "rewards", cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  advantages = group_advantages(rollouts, cfg)
  if cfg.beta and cfg.kl_in_reward:
    advantages = advantages - cfg.beta * kl_return(rollouts, cfg, mask)
  flat = common.zero_variance(rollouts, cfg.ddof, cfg.reward_combination)
  return common.train_batch(rollouts, cfg, advantages, mask, {"zero_variance": flat})


def kl_term(logprobs: Array, old: Array, ref: Array | None, cfg, clipped: Array) -> Array:
  """beta * KL of each token as it stands in the loss; 0 without one. All [P, G, L]."""
  if not cfg.beta or cfg.kl_in_reward:
    return jnp.zeros_like(logprobs)
  kl = divergences.kl_estimate(logprobs, common.require(ref, "ref_logprobs", cfg.name), cfg.kl_estimator)
  if cfg.kl_weighted:
    kl = surrogate.token_ratio(logprobs, old) * kl
  if not cfg.kl_past_bound:
    kl = jnp.where(clipped, 0.0, kl)
  return cfg.beta * kl


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """-J of a slice of the batch: sum(weights * token loss), and its metrics."""
  return clipped_loss(importance_ratio, outputs, batch, cfg)


def clipped_loss(importance_ratio: Callable, outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """`loss` with another ratio."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta)
  gain = gain * common.mismatch(old, batch, cfg)
  low, high = surrogate.beyond(ratio, batch.advantages, lower, upper, cfg.clip_delta)
  kl = kl_term(logprobs, old, ref, cfg, low | high)
  metrics = common.policy_metrics(outputs, batch)
  metrics |= common.ratio_metrics(outputs, batch, cfg, importance_ratio, gain, cfg.clip_delta)
  return jnp.sum(batch.weights * (kl - gain)), metrics
