"""Functions that objectives share: masks and weights, the policies of a loss, ratios and bounds.

Those that have the signature of a field of `base.Objective` are made to be named there.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import divergences, masked, surrogate
from grpo_jax.ops import mismatch as of_sampler
from grpo_jax.types import TRUNCATED, Array, Outputs, Rollouts, TrainBatch

T = TypeVar("T")
ENTROPY_WEIGHT = (
  "entropy_weight"  # in `TrainBatch.extra`, [P]: a weight that changes with the steps
)


def require(value: T | None, name: str, objective: str) -> T:
  """Returns `value`, an array that these rollouts must have; refuses None."""
  if value is None:
    raise SettingError(f"objective={objective!r} needs {name}, which these rollouts do not have")
  return value


def scored(rollouts: Rollouts, objective: str) -> tuple[Array, Array]:
  """Returns the rewards and where they were given, both [P, G, L]; refuses rollouts without."""
  return require(rollouts.rewards, "rewards", objective), require(
    rollouts.given, "given", objective
  )


# -- from rollouts to a batch


def sampled_mask(rollouts: Rollouts) -> Array:
  """Returns [P, G, L] float32: 1 on the tokens of completions that the policy sampled.

  Stop tokens are among them, and those that an environment wrote are not.
  """
  inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
  return inside if rollouts.sampled is None else inside * rollouts.sampled


def sampled_lengths(rollouts: Rollouts) -> Array:
  """Returns the number of tokens of each completion that the policy sampled, [P, G] int32."""
  if rollouts.sampled is None:
    return rollouts.lengths
  return jnp.sum(sampled_mask(rollouts), axis=2).astype(jnp.int32)


def by_sampled_token(rollouts: Rollouts, function: Callable[..., Array], *arrays: Array) -> Array:
  """Returns `function(*arrays)`, in which the t-th sampled tokens of a group stand side by side.

  In episodes the turns of a group's samples begin at different places, and a baseline of each token
  compares the t-th token that one sampled with the t-th of the others. It is what it would be
  without the environment's tokens.

  Args:
    rollouts: tell which tokens were sampled.
    function: of arrays [P, G, L], in which sampled tokens come first; returns such an array.
    *arrays: [P, G, L].

  Returns:
    [P, G, L], with each token at its place.
  """
  if rollouts.sampled is None:  # they stand so already
    return function(*arrays)
  order = jnp.argsort(sampled_mask(rollouts) == 0, axis=2, stable=True)
  moved = function(*(jnp.take_along_axis(x, order, axis=2) for x in arrays))
  return jnp.take_along_axis(moved, jnp.argsort(order, axis=2), axis=2)


def completion_mask(rollouts: Rollouts, mask_truncated: bool) -> Array:
  """Returns `sampled_mask`, 0 on truncated completions with `mask_truncated`."""
  mask = sampled_mask(rollouts)
  if mask_truncated:
    mask = mask * (rollouts.ended != TRUNCATED)[..., None]
  return mask


def taught_mask(rollouts: Rollouts, mask_truncated: bool) -> Array:
  """Returns `completion_mask`, 0 on completions that have no teacher."""
  mask = completion_mask(rollouts, mask_truncated)
  if rollouts.ref_prompts is None:
    return mask
  lengths = rollouts.ref_prompts.lengths
  return mask * (lengths > 0).reshape(len(lengths), -1, 1)


def taught_batch(rollouts: Rollouts, cfg: ConfigDict) -> TrainBatch:
  """Returns the batch of the completions that have a teacher, without advantages."""
  mask = taught_mask(rollouts, cfg.mask_truncated)
  return train_batch(rollouts, jnp.zeros_like(mask), mask, weights(mask, rollouts.lengths, cfg))


def last_token(lengths: Array, max_length: int) -> Array:
  """Returns [..., L] bool: true on the last token of each completion that is not empty."""
  return jnp.arange(max_length) == lengths[..., None] - 1


def weights(mask: Array, lengths: Array, cfg: ConfigDict) -> Array:
  """Returns the weights [P, G, L] under `cfg.aggregation`: the `weights` of most objectives."""
  return masked.token_weights(mask, lengths, cfg.aggregation, cfg.max_length)


def sequence_mean_weights(mask: Array, lengths: Array, cfg: ConfigDict) -> Array:
  """Returns the weights [P, G, L] of a mean over completions."""
  del cfg
  return masked.token_weights(mask, lengths, "sequence_mean")


def prompt_sum_weights(mask: Array, lengths: Array, cfg: ConfigDict) -> Array:
  """Returns 1 / number of prompts on the mask, [P, G, L]."""
  del cfg
  return masked.token_weights(mask, lengths, "prompt_sum")


def train_batch(
  rollouts: Rollouts,
  advantages: Array,
  mask: Array,
  weights: Array,
  extra: dict[str, Array] | None = None,
) -> TrainBatch:
  """Returns the TrainBatch of rollouts; its advantages are 0 off the mask and have no gradient.

  Args:
    rollouts: with prompts, completions and log-probs.
    advantages: [P, G, L].
    mask: [P, G, L], 1 on the tokens that are trained.
    weights: [P, G, L], of the objective's `weights`.
    extra: the objective's own arrays, [P] or [P, G, ...].
  """
  chex.assert_shape([advantages, mask, weights], rollouts.tokens.shape)
  return TrainBatch(
    prompts=rollouts.prompts,
    tokens=rollouts.tokens,
    lengths=rollouts.lengths,
    mask=mask,
    advantages=on_mask(jax.lax.stop_gradient(advantages), mask),
    weights=weights,
    old_logprobs=rollouts.old_logprobs,
    ref_logprobs=rollouts.ref_logprobs,
    ref_hidden=rollouts.ref_hidden,
    sampler_logprobs=rollouts.sampler_logprobs,
    extra=extra or {},
  )


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch of rollouts with the advantages that the config names."""
  advantages = require(advantages, "advantages (the setting `advantage`)", cfg.name)
  mask = completion_mask(rollouts, cfg.mask_truncated)
  return train_batch(rollouts, advantages, mask, weights(mask, rollouts.lengths, cfg))


def flat(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns which groups teach nothing, [P] bool: they have no advantage, or equal rewards.

  Rewards are compared only where there are no advantages.
  """
  if advantages is not None:
    return jnp.all(advantages == 0.0, axis=(1, 2))
  return adv.flat(*scored(rollouts, cfg.name))


def flat_never(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns False for each group, [P]: the objective learns from every completion."""
  del cfg, advantages
  return jnp.zeros(rollouts.tokens.shape[0], bool)


def pair_signs(rollouts: Rollouts, cfg: ConfigDict, mask: Array) -> Array:
  """Returns [P, 2, L]: +1 on tokens of the chosen completion, -1 on those of the rejected one."""
  if rollouts.tokens.shape[1] != 2:
    raise SettingError(
      f"groups of {rollouts.tokens.shape[1]} with objective={cfg.name!r}: it takes pairs, [chosen, "
      "rejected]"
    )
  return jnp.array([1.0, -1.0])[None, :, None] * mask


def written(rollouts: Rollouts) -> Rollouts:
  """Returns rollouts without sampler log-probs: the policy's sampler did not write them."""
  return dataclasses.replace(rollouts, sampler_logprobs=None)


def kl_to_come(rollouts: Rollouts, mask: Array, estimator: str, objective: str) -> Array:
  """Returns the KL of the old policy to the reference from each token on, [P, G, L]."""
  old = on_mask(require(rollouts.old_logprobs, "old_logprobs", objective), mask)
  ref = on_mask(require(rollouts.ref_logprobs, "ref_logprobs", objective), mask)
  return adv.returns_to_go(mask * divergences.kl_estimate(old, ref, estimator))


# -- the policies of a loss


def on_mask(x: Array, mask: Array) -> Array:
  """Returns `x` with 0 off the mask, so that padding adds no infinity or NaN."""
  return jnp.where(mask > 0, x, 0.0)


def policies(outputs: Outputs, batch: TrainBatch) -> tuple[Array, Array, Array | None]:
  """Returns (log pi, log pi_old, log pi_ref or None), each [P, G, L] and 0 off the mask.

  Without old log-probs this is the only update on its rollouts: old = stop_gradient(new), and every
  ratio is exactly 1.
  """
  logprobs = on_mask(outputs.logprobs, batch.mask)
  old = (
    jax.lax.stop_gradient(logprobs)
    if batch.old_logprobs is None
    else on_mask(batch.old_logprobs, batch.mask)
  )
  ref = None if batch.ref_logprobs is None else on_mask(batch.ref_logprobs, batch.mask)
  return logprobs, jax.lax.stop_gradient(old), None if ref is None else jax.lax.stop_gradient(ref)


def mismatch(logprobs: Array, old: Array, batch: TrainBatch, cfg: ConfigDict) -> Array:
  """Returns the weight of each token for what its sampler was not, [P, G, L]; see ops/mismatch.py.

  It is the importance weight that `cfg.mismatch` asks for, and 0 on tokens that `cfg.keep` leaves
  out. All policies are of the full softmax: truncation by top-k, top-p and min-p is not a mismatch.
  """
  if cfg.mismatch == "none" and cfg.keep == "all":
    return jnp.ones_like(batch.mask)
  d = old - sampler_logprobs(batch, cfg)
  weight = of_sampler.weight(d, batch.mask, cfg.mismatch, cfg.mismatch_low, cfg.mismatch_high)
  return jax.lax.stop_gradient(weight * kept(logprobs, old, batch, cfg))


def kept(logprobs: Array, old: Array, batch: TrainBatch, cfg: ConfigDict) -> Array:
  """Returns 1 on tokens that `cfg.keep` learns from and 0 on others, [P, G, L]."""
  if cfg.keep == "all":
    return jnp.ones_like(batch.mask)
  d = jax.lax.stop_gradient(logprobs if cfg.keep_live else old) - sampler_logprobs(batch, cfg)
  keep = of_sampler.kept(d, batch.mask, cfg.keep, cfg.keep_by, cfg.keep_low, cfg.keep_high)
  return jnp.where(of_sampler.may_go(d, batch.advantages, cfg.keep_condition), keep, 1.0)


def sampler_logprobs(batch: TrainBatch, cfg: ConfigDict) -> Array:
  """Returns log mu of the sampler, [P, G, L], 0 off the mask."""
  return on_mask(require(batch.sampler_logprobs, "sampler_logprobs", cfg.name), batch.mask)


def entropy_bonus(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> Array:
  """Returns the policy's entropy times its weight, [P, G, L], with its gradient.

  The weight is `cfg.entropy_bonus`, or the learner's own (`learner.entropy_target`).
  """
  if ENTROPY_WEIGHT in batch.extra:
    weight = batch.extra[ENTROPY_WEIGHT][:, None, None]
    return weight * on_mask(outputs.entropy, batch.mask)
  if not cfg.entropy_bonus:
    return jnp.zeros_like(batch.mask)
  return cfg.entropy_bonus * on_mask(outputs.entropy, batch.mask)


# -- ratios and bounds


def token_ratio(logprobs: Array, old: Array, mask: Array, cfg: ConfigDict) -> Array:
  """Returns pi / pi_old of each token, [P, G, L]."""
  del mask, cfg
  return surrogate.token_ratio(logprobs, old)


def ratio_and_largest(
  importance_ratio: Callable, logprobs: Array, old: Array, mask: Array, cfg: ConfigDict
) -> tuple[Array, Array]:
  """Returns the ratio, and the ratio of a policy that gives every sampled token probability 1."""
  ratio, largest = (
    importance_ratio(new, old, mask, cfg) for new in (logprobs, jnp.zeros_like(old))
  )
  return ratio, largest


def clip_bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (1 - clip_low, 1 + clip_high)."""
  del batch
  return 1.0 - cfg.clip_low, 1.0 + cfg.clip_high


def no_bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (0, infinity): nothing is clipped."""
  del batch, cfg
  return 0.0, jnp.inf


def prepared_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """Returns the advantages of `prepare`, [P, G, L], which do not move with the policy."""
  del logprobs
  return batch.advantages
