"""GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3 and 21), with outcome and process supervision.

    J = mean over completions of the mean over tokens of
          min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) - beta k3(pi, pi_ref)
    A[t] = sum over given rewards j >= t of (r[j] - mean(R)) / (std(R) + eps)

At pi = pi_old the coefficient of grad log pi is A + beta (pi_ref / pi - 1).

Settings of this file that have their own name in the literature:

    Dr.GRPO (2503.20783)   aggregation="constant", scale="none", beta=0
    DAPO (2503.14476)      aggregation="group_token_mean" ("token_mean" is TRL's reading),
                           clip_high=0.28, beta=0, the overlong reward of rewards/length.py, and
                           dynamic sampling (sampler.tries)
    two-sided clip         clip_delta > 1 + clip_high (2505.07291)
    GDPO (2601.05242)      advantage="gdpo"
    KL in the reward       kl_in_reward=True, with kl_estimator="k1"
    entropy bonus          entropy_bonus: J + entropy_bonus H(pi), H over the whole vocabulary
    high-entropy tokens    top_entropy=0.2 (2506.01939): A is 0 on the other tokens of the batch

Differences from TRL 1.16: the log-ratio is clamped to [-20, 20], and d = log pi_ref - log pi to at
most 20; k3 is computed by expm1; a group of equal rewards has A = 0 exactly, where TRL divides
rounding noise by eps. ddof=1 and eps=1e-4 are the same. Of n tokens top_entropy=q keeps ceil(q n),
by the old policy's entropy in the whole batch, and TRL 1 + floor(q (n - 1)), by the live policy's
in each microbatch.
"""

from collections.abc import Callable

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.advantages import WITH_KL
from grpo_jax.objectives.base import Needs, Objective
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of GRPO, with DeepSeekMath's formula and no KL."""
  c = shared_settings.join(
    shared_settings.advantage(), shared_settings.clipped(), shared_settings.entropy()
  )
  # share of the batch's tokens, those of the largest entropy, that learn from A
  c.top_entropy = 1.0
  c.kl_estimator = "k3"  # k1, k2 or k3: docs/objectives.md, "The KL to a reference"
  c.kl_weighted = False  # multiply the KL by pi / pi_old, which has a gradient, too
  c.kl_in_reward = False  # take beta times the KL off the advantages, and leave it out of the loss
  c.kl_past_bound = True  # a token past its clip bound still takes the KL's gradient
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names and settings that contradict each other."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "beta")
  if "top_entropy" in cfg:
    shared_settings.check_between(cfg, 1e-6, 1, "top_entropy")
  shared_settings.check_choice(cfg, "kl_estimator", divergences.ESTIMATORS)
  if in_reward(cfg) and cfg.kl_weighted:
    raise SettingError(
      "kl_weighted=True with kl_in_reward=True: a reward has no ratio; use one of the two"
    )


def in_reward(cfg: ConfigDict) -> bool:
  """Returns whether the KL is in the reward; never under an objective without that setting."""
  return bool(cfg.get("kl_in_reward", False))


def needs(cfg: ConfigDict) -> Needs:
  """Returns the reference where there is a KL, and the old policy where the KL is in the reward or
  tokens are chosen by its entropy.
  """
  old = (cfg.beta and in_reward(cfg)) or cfg.get("top_entropy", 1.0) < 1.0
  return (Needs.REFERENCE if cfg.beta else Needs.NOTHING) | (
    Needs.OLD_POLICY if old else Needs.NOTHING
  )


def kl_return(rollouts: Rollouts, cfg: ConfigDict, mask: Array) -> Array:
  """Returns the KL from each token on, less its mean over the group's other samples, [P, G, L].

  In the reward with k1 and gamma = 1 this is the gradient of the whole sequence's KL, which
  per-token losses miss. The mean is that of the t-th sampled tokens, and leaves the sample itself
  out, so that it changes only the variance. Samples without a token on the mask are not counted,
  and get 0.
  """
  to_come = mask * common.kl_to_come(rollouts, mask, cfg.kl_estimator, cfg.name)
  real = jnp.any(mask > 0, axis=2, keepdims=True)
  others = jnp.maximum(jnp.sum(real, axis=1, keepdims=True) - real, 1)

  def relative(x: Array) -> Array:
    return x - (jnp.sum(x, axis=1, keepdims=True) - x) / others

  return real * common.by_sampled_token(rollouts, relative, to_come)


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with the given advantages: less the KL of the reward, unless they have it in
  them, and 0 on the tokens that `top_entropy` leaves out. A completion without a reward has no KL
  in it either.
  """
  advantages = common.require(advantages, "advantages (the setting `advantage`)", cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  if cfg.beta and in_reward(cfg) and cfg.advantage not in WITH_KL:
    judged = jnp.any(common.scored(rollouts, cfg.name)[1], axis=2)[..., None]
    advantages = advantages - cfg.beta * kl_return(rollouts, cfg, mask * judged)
  if cfg.get("top_entropy", 1.0) < 1.0:
    entropy = common.require(rollouts.old_entropy, "old_entropy", cfg.name)
    advantages = advantages * masked.largest(entropy, mask, cfg.top_entropy)
  return common.prepare(rollouts, cfg, advantages)


def kl_term(logprobs: Array, old: Array, ref: Array | None, cfg: ConfigDict) -> Array:
  """Returns beta * KL of each token, 0 if the KL is not in the loss. Shapes [P, G, L]."""
  if not cfg.beta or in_reward(cfg):
    return jnp.zeros_like(logprobs)
  ref = common.require(ref, "ref_logprobs", cfg.name)
  if not cfg.kl_weighted:
    return cfg.beta * divergences.kl_estimate(logprobs, ref, cfg.kl_estimator)
  weight = surrogate.token_ratio(logprobs, old)
  if cfg.kl_estimator == "k3":
    return cfg.beta * divergences.weighted_k3(weight, logprobs, ref)
  return cfg.beta * weight * divergences.kl_estimate(logprobs, ref, cfg.kl_estimator)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  return clipped_loss(common.token_ratio, outputs, batch, cfg)


def clipped_loss(
  importance_ratio: Callable, outputs: Outputs, batch: TrainBatch, cfg: ConfigDict
) -> tuple[Array, Metrics]:
  """Returns the loss with any ratio, and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = importance_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = common.clip_bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper, cfg.clip_delta)
  gain = gain * common.mismatch(logprobs, old, batch, cfg)
  kl = kl_term(logprobs, old, ref, cfg)
  if not cfg.kl_past_bound:
    low, high, above_delta = surrogate.beyond(ratio, batch.advantages, lower, upper, cfg.clip_delta)
    kl = jnp.where(low | high | above_delta, 0.0, kl)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(
    outputs, batch, cfg, importance_ratio, (lower, upper), gain, cfg.clip_delta
  )
  bonus = common.entropy_bonus(outputs, batch, cfg)
  return jnp.sum(batch.weights * (kl - gain - bonus)), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs,
  importance_ratio=common.token_ratio,
  bounds=common.clip_bounds,
)
