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
from grpo_jax.ops import masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Outputs, Rollouts, TrainBatch

T = TypeVar("T")


def require(value: T | None, name: str, objective: str) -> T:
  """Returns `value`, an array that these rollouts must have; refuses None."""
  if value is None:
    raise SettingError(f"objective={objective!r} needs {name}, which these rollouts do not have")
  return value


# -- from rollouts to a batch


def completion_mask(rollouts: Rollouts, mask_truncated: bool) -> Array:
  """Returns [P, G, L] float32: 1 on a completion's tokens, its stop token included.

  With `mask_truncated` the completions that were cut off are left out.
  """
  mask = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])
  if mask_truncated:
    mask = mask * (rollouts.ended != TRUNCATED)[..., None]
  return mask


def last_token(lengths: Array, max_length: int) -> Array:
  """Returns [..., L] bool: true on the last token of each completion, nowhere where the length is
  0.
  """
  return jnp.arange(max_length) == lengths[..., None] - 1


def weights(mask: Array, lengths: Array, cfg: ConfigDict) -> Array:
  """Returns the weights [P, G, L] under `cfg.aggregation`: the `weights` of most objectives."""
  return masked.token_weights(mask, lengths, cfg.aggregation, cfg.max_length)


def sequence_mean_weights(mask: Array, lengths: Array, cfg: ConfigDict) -> Array:
  """Returns the weights [P, G, L] of objectives that are defined by a mean over completions alone."""
  del cfg
  return masked.token_weights(mask, lengths, "sequence_mean")


def train_batch(
  rollouts: Rollouts,
  advantages: Array,
  mask: Array,
  weights: Array,
  extra: dict[str, Array] | None = None,
) -> TrainBatch:
  """Returns the TrainBatch of the rollouts, with advantages that are 0 off the mask and have no
  gradient.

  Args:
    rollouts: their prompts, completions and log-probs are taken over.
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
    advantages=jax.lax.stop_gradient(advantages) * mask,
    weights=weights,
    old_logprobs=rollouts.old_logprobs,
    ref_logprobs=rollouts.ref_logprobs,
    sampler_logprobs=rollouts.sampler_logprobs,
    extra=extra or {},
  )


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch of rollouts with the advantages that the config names."""
  advantages = require(advantages, "advantages (the setting `advantage`)", cfg.name)
  mask = completion_mask(rollouts, cfg.mask_truncated)
  return train_batch(rollouts, advantages, mask, weights(mask, rollouts.lengths, cfg))


def flat(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns which groups have no advantage on any token, or else were given equal rewards. [P] bool."""
  del cfg
  if advantages is not None:
    return jnp.all(advantages == 0.0, axis=(1, 2))
  return adv.flat(rollouts.rewards, rollouts.given)


def flat_never(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> Array:
  """Returns False for each group, [P]: for objectives that learn from every completion."""
  del cfg, advantages
  return jnp.zeros(rollouts.tokens.shape[0], bool)


def pair_signs(rollouts: Rollouts, cfg: ConfigDict, mask: Array) -> Array:
  """Returns +1 on the tokens of the chosen completion and -1 on those of the rejected one, [P, 2,
  L].

  Raises:
    SettingError: groups that are not pairs.
  """
  if rollouts.tokens.shape[1] != 2:
    raise SettingError(
      f"groups of {rollouts.tokens.shape[1]} with objective={cfg.name!r}: it takes pairs, [chosen, "
      "rejected]"
    )
  return jnp.array([1.0, -1.0])[None, :, None] * mask


def written(rollouts: Rollouts) -> Rollouts:
  """Returns rollouts that the policy's sampler did not make: without its log-probs, hence without a
  mismatch.
  """
  return dataclasses.replace(rollouts, sampler_logprobs=None)


# -- the policies of a loss


def on_mask(x: Array, mask: Array) -> Array:
  """Returns `x` with 0 where nothing is trained, so that padding cannot bring in an infinity or a
  NaN.
  """
  return jnp.where(mask > 0, x, 0.0)


def policies(outputs: Outputs, batch: TrainBatch) -> tuple[Array, Array, Array | None]:
  """Returns (log pi, log pi_old, log pi_ref or None), each [P, G, L] and 0 off the mask.

  Without old log-probs this is the only update on its rollouts: old = stop_gradient(new), every
  ratio exactly 1.
  """
  logprobs = on_mask(outputs.logprobs, batch.mask)
  old = (
    jax.lax.stop_gradient(logprobs)
    if batch.old_logprobs is None
    else on_mask(batch.old_logprobs, batch.mask)
  )
  ref = None if batch.ref_logprobs is None else on_mask(batch.ref_logprobs, batch.mask)
  return logprobs, jax.lax.stop_gradient(old), None if ref is None else jax.lax.stop_gradient(ref)


def mismatch(old: Array, batch: TrainBatch, cfg: ConfigDict) -> Array:
  """Returns the weight pi_old / pi_sampler that `cfg.mismatch` asks for, [P, G, L] or [P, G, 1].

  Both policies are of the full softmax: what top-k, top-p and min-p cut off is not a mismatch.
  """
  if cfg.mismatch == "none":
    return jnp.ones_like(batch.mask)
  sampler = on_mask(require(batch.sampler_logprobs, "sampler_logprobs", cfg.name), batch.mask)
  return surrogate.mismatch_weight(
    old, sampler, batch.mask, cfg.mismatch, cfg.mismatch_level, cfg.mismatch_cap
  )


# -- ratios and bounds


def token_ratio(logprobs: Array, old: Array, mask: Array, cfg: ConfigDict) -> Array:
  """Returns pi / pi_old of each token, [P, G, L]: the `importance_ratio` of objectives that clip by
  token.
  """
  del mask, cfg
  return surrogate.token_ratio(logprobs, old)


def ratio_and_largest(
  importance_ratio: Callable, logprobs: Array, old: Array, mask: Array, cfg: ConfigDict
) -> tuple[Array, Array]:
  """Returns the ratio, and that of a policy that is certain of what was sampled."""
  ratio, largest = (
    importance_ratio(new, old, mask, cfg) for new in (logprobs, jnp.zeros_like(old))
  )
  return ratio, largest


def clip_bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (1 - clip_low, 1 + clip_high), the `bounds` of objectives that clip all tokens alike."""
  del batch
  return 1.0 - cfg.clip_low, 1.0 + cfg.clip_high


def no_bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[float, float]:
  """Returns (0, infinity), the `bounds` of objectives that clip nothing."""
  del batch, cfg
  return 0.0, jnp.inf


def prepared_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """Returns the advantages of `prepare`, [P, G, L]: the `live_advantages` of most objectives."""
  del logprobs
  return batch.advantages
