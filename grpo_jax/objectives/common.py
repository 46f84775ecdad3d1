"""What the objectives share: masks and weights of a batch, the frozen policies, and the metrics every one reports.

An objective is a module with

    needs(cfg) -> names            the forward passes to make first: of "ref", "old", "values"; refuses wrong settings
    prepare(rollouts, cfg) -> TrainBatch
    loss(outputs, batch, cfg) -> (loss, metrics)
    importance_ratio(logprobs, old, mask, cfg)    where it has a ratio to the old policy
    live_advantages(logprobs, batch)              where they come from the policy as it is, not from `prepare`
    DATA                           what it learns from: "live" samples, or offline "samples", "pairs", "solutions"
    READS                          of the settings in `OFF`, those that it reads

Metrics are (total, count), see `types.Metrics`. Reported wherever they exist:

    entropy logprob      of pi, mean over trained tokens
    surrogate            sum(weights * gain) / sum(weights): what the inner loop improves, KL left out
    kl kl_k1             mean k3 (never negative) and k1 of pi to pi_ref (or to the teacher)
    ratio ratio_max      pi / pi_old
    old_kl               mean k3 of pi to pi_old: how far the inner loop has gone
    clip_low clip_high   fraction of trained tokens that the clip has stopped, A < 0 and A > 0 (CISPO: capped, A > 0)
    at_bound past_bound  fraction of tokens with A != 0 that have come to their bound, or have overshot it; a token
                         certain from the start cannot go further, and counts as come
    mismatch mismatch_max mismatch_kl    pi_old / pi_sampler by token, and k3 of the two
    zero_variance        fraction of groups whose rewards are all equal
    advantage_abs        mean |A| over trained tokens
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Metrics, Outputs, Rollouts, TrainBatch


def completion_mask(rollouts: Rollouts, mask_truncated: bool) -> Array:
  """[P, G, L] float32: 1 on a completion's tokens, its stop token included; truncated ones left out if asked."""
  mask = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
  if mask_truncated:
    mask = mask * (rollouts.ended != TRUNCATED)[..., None]
  return mask


def last_token(lengths: Array, max_length: int) -> Array:
  """[..., L] bool: the last token of each completion; nowhere where the length is 0."""
  return jnp.arange(max_length) == lengths[..., None] - 1


def num_sequences(lengths: Array) -> Array:
  """How many completions are real: rows of length 0 only fill the batch."""
  return jnp.sum(lengths > 0)


def train_batch(rollouts: Rollouts, cfg, advantages: Array, mask: Array, extra=None) -> TrainBatch:
  """A TrainBatch with the weights of the whole batch, under `cfg.aggregation`."""
  return TrainBatch(
    prompts=rollouts.prompts,
    tokens=rollouts.tokens,
    lengths=rollouts.lengths,
    mask=mask,
    advantages=jax.lax.stop_gradient(advantages) * mask,
    weights=masked.token_weights(mask, num_sequences(rollouts.lengths), cfg.aggregation, cfg.max_length),
    old_logprobs=rollouts.old_logprobs,
    ref_logprobs=rollouts.ref_logprobs,
    sampler_logprobs=rollouts.sampler_logprobs,
    extra=extra or {},
  )


def written(rollouts: Rollouts) -> Rollouts:
  """The same for completions that the policy's sampler did not make: without its log-probs, hence no mismatch."""
  return dataclasses.replace(rollouts, sampler_logprobs=None)


def require(value, name: str, objective: str):
  """`value`, which must be there.

  Raises:
    SettingError: it is None.
  """
  if value is None:
    raise SettingError(f"objective={objective!r} needs {name}, which these rollouts do not have")
  return value


def scores(rollouts: Rollouts) -> Array:
  """[P, G] the sum of the rewards given to each completion."""
  return masked.masked_sum(rollouts.rewards, rollouts.given, axis=2)


def on_mask(x: Array, mask: Array) -> Array:
  """`x` with 0 where nothing is trained, so that padding cannot bring in an infinity or a NaN."""
  return jnp.where(mask > 0, x, 0.0)


def policies(outputs: Outputs, batch: TrainBatch) -> tuple[Array, Array, Array | None]:
  """(log pi, log pi_old, log pi_ref or None), each [P, G, L] and 0 off the mask.

  Without old log-probs this is the only update on its rollouts: old = stop_gradient(new), every ratio exactly 1.
  """
  logprobs = on_mask(outputs.logprobs, batch.mask)
  old = jax.lax.stop_gradient(logprobs) if batch.old_logprobs is None else on_mask(batch.old_logprobs, batch.mask)
  ref = None if batch.ref_logprobs is None else on_mask(batch.ref_logprobs, batch.mask)
  return logprobs, jax.lax.stop_gradient(old), None if ref is None else jax.lax.stop_gradient(ref)


# Settings by name, and the values that they can have.
CHOICES = {
  "aggregation": masked.AGGREGATIONS,
  "baseline": adv.BASELINES,
  "scale": adv.SCALES,
  "reward_combination": ("sum", "gdpo"),
  "credit": ("sequence", "prefix"),
  "kl_estimator": divergences.ESTIMATORS,
  "mismatch": surrogate.MISMATCHES,
  "mismatch_level": surrogate.MISMATCH_LEVELS,
}
# Settings that switch something on, and their value where they do not.
OFF = {
  "beta": 0.0,
  "kl_weighted": False,
  "kl_in_reward": False,
  "kl_past_bound": True,
  "clip_delta": 0.0,
  "reward_combination": "sum",
  "credit": "sequence",
  "mask_truncated": False,
  "mismatch": "none",
  "token_level": False,
  "group_baseline": False,
  "label_smoothing": 0.0,
}


def needs(objective: Any, cfg) -> frozenset[str]:
  """`objective.needs(cfg)`, once names are known and nothing is switched on that the objective would not look at.

  Args:
    objective: the module; one without READS may read everything.
    cfg: the `objective` section.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  for name, choices in CHOICES.items():
    if cfg[name] not in choices:
      raise SettingError(f"{name}={cfg[name]!r}: use one of {', '.join(choices)}")
  reads = getattr(objective, "READS", OFF)
  for name, off in OFF.items():
    if name not in reads and cfg[name] != off:
      raise SettingError(f"{name}={cfg[name]!r} with objective={cfg.name!r}, which does not read it: use {off!r}")
  return objective.needs(cfg)


def token_ratio(logprobs: Array, old: Array, mask: Array, cfg) -> Array:
  """pi / pi_old of each token: the `importance_ratio` of the objectives that clip by token."""
  del mask, cfg
  return surrogate.token_ratio(logprobs, old)


def ratio_and_largest(importance_ratio: Callable, logprobs: Array, old: Array, mask: Array, cfg) -> tuple[Array, Array]:
  """The ratio, and that of a policy that is certain of what was sampled."""
  ratio, largest = (importance_ratio(new, old, mask, cfg) for new in (logprobs, jnp.zeros_like(old)))
  return ratio, largest


def mismatch(old: Array, batch: TrainBatch, cfg) -> Array:
  """The weight pi_old / pi_sampler that `cfg.mismatch` asks for; see `surrogate.mismatch_weight`.

  Both are of the full softmax: what top-k, top-p and min-p cut off is not a mismatch.
  """
  if cfg.mismatch == "none":
    return jnp.ones_like(batch.mask)
  sampler = on_mask(require(batch.sampler_logprobs, "sampler_logprobs", cfg.name), batch.mask)
  return surrogate.mismatch_weight(old, sampler, batch.mask, cfg.mismatch, cfg.mismatch_level, cfg.mismatch_cap)


def token_mean(x: Array, mask: Array) -> tuple[Array, Array]:
  """(total, count) of `x` over the trained tokens."""
  return masked.masked_sum(x, mask), jnp.sum(mask)


def token_max(x: Array, mask: Array) -> tuple[Array, Array]:
  """(value, 1) for a metric whose name ends in `_max`; `x` is not negative."""
  return jnp.max(jnp.where(mask > 0, x, 0.0)), jnp.ones(())


def policy_metrics(outputs: Outputs, batch: TrainBatch) -> Metrics:
  """The metrics that need no ratio: every objective that trains a policy reports them."""
  mask = batch.mask
  logprobs, old, ref = jax.lax.stop_gradient(policies(outputs, batch))
  metrics = {
    "entropy": token_mean(outputs.entropy, mask),
    "logprob": token_mean(logprobs, mask),
    "advantage_abs": token_mean(jnp.abs(batch.advantages), mask),
  }
  if ref is not None:
    metrics["kl"] = token_mean(divergences.k3(logprobs, ref), mask)
    metrics["kl_k1"] = token_mean(divergences.k1(logprobs, ref), mask)
  if batch.sampler_logprobs is not None:
    sampler = on_mask(batch.sampler_logprobs, mask)
    weight = surrogate.token_ratio(old, sampler)
    metrics["mismatch"] = token_mean(weight, mask)
    metrics["mismatch_max"] = token_max(weight, mask)
    metrics["mismatch_kl"] = token_mean(divergences.k3(sampler, old), mask)
  if "zero_variance" in batch.extra:
    real = jnp.any(batch.lengths > 0, axis=1).astype(jnp.float32)
    metrics["zero_variance"] = (masked.masked_sum(batch.extra["zero_variance"], real), jnp.sum(real))
  return metrics


def ratio_metrics(
  outputs: Outputs, batch: TrainBatch, cfg, importance_ratio: Callable, gain: Array, delta: float = 0.0
) -> Metrics:
  """The metrics of a surrogate with bounds (`gain` [P, G, L]) on the objective's `importance_ratio`."""
  mask = batch.mask
  logprobs, old, _ = jax.lax.stop_gradient(policies(outputs, batch))
  lower, upper = bounds(batch, cfg)
  ratio, largest = ratio_and_largest(importance_ratio, logprobs, old, mask, cfg)
  ratio = jnp.broadcast_to(ratio, mask.shape)
  low, high = surrogate.beyond(ratio, batch.advantages, lower, upper, delta)
  acting = mask * (batch.advantages != 0)
  _, at, past = surrogate.progress(ratio, largest, batch.advantages, lower, upper)
  return {
    "surrogate": (jax.lax.stop_gradient(jnp.sum(batch.weights * gain)), jnp.sum(batch.weights)),
    "ratio": token_mean(ratio, mask),
    "ratio_max": token_max(ratio, mask),
    "old_kl": token_mean(divergences.k3(old, logprobs), mask),
    "clip_low": token_mean(low.astype(jnp.float32), mask),
    "clip_high": token_mean(high.astype(jnp.float32), mask),
    "at_bound": token_mean(at.astype(jnp.float32), acting),
    "past_bound": token_mean(past.astype(jnp.float32), acting),
  }


def bounds(batch: TrainBatch, cfg) -> tuple[Array | float, Array | float]:
  """(lower, upper) bounds of the ratio: a token's own if the objective made some, else the settings'."""
  if "upper" in batch.extra:
    return batch.extra["lower"], batch.extra["upper"]
  return 1.0 - cfg.clip_low, 1.0 + cfg.clip_high


def zero_variance(rollouts: Rollouts, ddof: int = 1, combination: str = "sum") -> Array:
  """[P] float32: groups whose rewards are all equal; under "gdpo" each of several rewards."""
  if combination == "gdpo":
    real = (rollouts.lengths > 0)[..., None]
    each = jnp.moveaxis(rollouts.parts, 2, 0)[..., None]  # [N, P, G, 1]
    return jnp.all(jax.vmap(lambda reward: adv.flat(reward, real, ddof))(each), axis=0).astype(jnp.float32)
  return adv.flat(rollouts.rewards, rollouts.given, ddof).astype(jnp.float32)
