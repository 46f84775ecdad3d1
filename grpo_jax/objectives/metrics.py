"""Computes the metrics of a loss, each as (total, count); see `types.Metrics`.

Every objective that trains a policy reports `policy_metrics`:

    entropy logprob      means over trained tokens of pi's entropy and of log pi
    advantage_abs        mean over trained tokens of |A|
    kl kl_k1             mean k3 (never negative) and k1 of pi to the reference or teacher, if any
    mismatch mismatch_max mismatch_kl
                         mean and largest pi_old / pi_sampler by token, and their mean k3
    mismatch_square      mean of its square; the learner makes mismatch_ess of it

Objectives with a ratio to the old policy report `ratio_metrics`, the last four with bounds:

    surrogate            sum(weights * gain) / sum(weights), which the inner loop improves; no KL
    ratio ratio_max      pi / pi_old as the objective clips it, by token or by sequence
    old_kl               mean k3 of pi to pi_old: the distance gone in the inner loop
    clip_low clip_high   share of trained tokens that the clip stops: A < 0 and below the lower
                         bound, and A > 0 and above the upper one (CISPO: capped, A > 0)
    clip_delta           share that the two-sided clip, if on, stops: A < 0 and above clip_delta
    at_bound past_bound  share of tokens with A != 0 that are at their bound, or past it; a token
                         of probability 1 cannot go further and counts as at its bound

Objectives with `keep`, and dppo, report:

    kept                 share of trained tokens that are learned from

Single objectives report:

    divergence                      gkd: mean over trained tokens, to the teacher
    phi                             vespo: mean over trained tokens of the weight of a completion
    value return value_loss         ppo: means over trained tokens; the loss before value_coef
    reward_chosen reward_rejected   dpo: means over pairs of the implied rewards beta h
    reward_margin pair_accuracy     dpo, reward_model: mean difference; share where chosen has more
                                    (a tie counts half)
    pair_loss                       reward_model: mean over pairs
    step_loss step_accuracy         process_reward_model: means over steps

The learner adds loss, grad_norm (and critic_grad_norm), skipped and inner/..., and the loop the
metrics of the samples: reward/..., length/..., agreement/... of reward models with the rule, and
zero_variance, the share of sampled groups that are `flat`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def token_mean(x: Array, mask: Array) -> tuple[Array, Array]:
  """Returns (total, count) of `x` over the trained tokens. x, mask: [P, G, L]."""
  return masked.masked_sum(x, mask), jnp.sum(mask)


def token_max(x: Array, mask: Array) -> tuple[Array, Array]:
  """Returns (value, 1) for a metric whose name ends in `_max`; `x` [P, G, L] is not negative."""
  return jnp.max(jnp.where(mask > 0, x, 0.0)), jnp.ones(())


def group_mean(x: Array, lengths: Array) -> tuple[Array, Array]:
  """Returns (total, count) of `x` [P] over the groups that are real; lengths: [P, G]."""
  real = jnp.any(lengths > 0, axis=1).astype(jnp.float32)
  return masked.masked_sum(x, real), jnp.sum(real)


def policy_metrics(outputs: Outputs, batch: TrainBatch) -> Metrics:
  """Returns the metrics that need no ratio."""
  mask = batch.mask
  logprobs, old, ref = jax.lax.stop_gradient(common.policies(outputs, batch))
  metrics = {
    "entropy": token_mean(jax.lax.stop_gradient(outputs.entropy), mask),
    "logprob": token_mean(logprobs, mask),
    "advantage_abs": token_mean(jnp.abs(batch.advantages), mask),
  }
  if ref is not None:
    metrics["kl"] = token_mean(divergences.k3(logprobs, ref), mask)
    metrics["kl_k1"] = token_mean(divergences.k1(logprobs, ref), mask)
  if batch.sampler_logprobs is not None:
    sampler = common.on_mask(batch.sampler_logprobs, mask)
    weight = surrogate.token_ratio(old, sampler)
    metrics["mismatch"] = token_mean(weight, mask)
    metrics["mismatch_square"] = token_mean(weight**2, mask)
    metrics["mismatch_max"] = token_max(weight, mask)
    metrics["mismatch_kl"] = token_mean(divergences.k3(sampler, old), mask)
  return metrics


def ratio_metrics(
  outputs: Outputs,
  batch: TrainBatch,
  cfg: ConfigDict,
  importance_ratio: Callable,
  bounds: tuple[Array | float, Array | float] | None,
  gain: Array,
  delta: float = 0.0,
) -> Metrics:
  """Returns the metrics of a surrogate `gain` [P, G, L] with bounds on the objective's
  `importance_ratio`.

  `bounds` and `delta` are what `surrogate.clipped` was given; None: nothing is clipped.
  """
  mask = batch.mask
  logprobs, old, _ = jax.lax.stop_gradient(common.policies(outputs, batch))
  ratio, largest = common.ratio_and_largest(importance_ratio, logprobs, old, mask, cfg)
  ratio = jnp.broadcast_to(ratio, mask.shape)
  metrics = {
    "surrogate": (jax.lax.stop_gradient(jnp.sum(batch.weights * gain)), jnp.sum(batch.weights)),
    "ratio": token_mean(ratio, mask),
    "ratio_max": token_max(ratio, mask),
    "old_kl": token_mean(divergences.k3(old, logprobs), mask),
  }
  if bounds is None:
    return metrics | kept(logprobs, old, batch, cfg)
  low, high, above_delta = surrogate.beyond(ratio, batch.advantages, *bounds, delta)
  acting = mask * (batch.advantages != 0)
  _, at, past = surrogate.progress(ratio, largest, batch.advantages, *bounds)
  metrics |= {
    "clip_low": token_mean(low.astype(jnp.float32), mask),
    "clip_high": token_mean(high.astype(jnp.float32), mask),
    "at_bound": token_mean(at.astype(jnp.float32), acting),
    "past_bound": token_mean(past.astype(jnp.float32), acting),
  }
  if delta:
    metrics["clip_delta"] = token_mean(above_delta.astype(jnp.float32), mask)
  return metrics | kept(logprobs, old, batch, cfg)


def kept(logprobs: Array, old: Array, batch: TrainBatch, cfg: ConfigDict) -> Metrics:
  """Returns the share of tokens that `cfg.keep` learns from; nothing where it is "all"."""
  if cfg.get("keep", "all") == "all":
    return {}
  return {"kept": token_mean(common.kept(logprobs, old, batch, cfg), batch.mask)}
