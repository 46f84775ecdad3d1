"""What the objectives share: settings, masks and weights of a batch, the frozen policies, bounds
and ratios.

contract.py says what an objective is; metrics.py has what all of them report.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import chex
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict, config_dict

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import masked, surrogate
from grpo_jax.types import TRUNCATED, Array, Outputs, Rollouts, TrainBatch

# -- settings that several objectives read, and their checks


def aggregation_settings() -> ConfigDict:
  """Returns the settings of `weights`."""
  c = ConfigDict()
  # sequence_mean (GRPO), token_mean, group_token_mean (DAPO), constant (Dr.GRPO), prompt_sum; see
  # ops/masked.py
  c.aggregation = "sequence_mean"
  # of a completion, for "constant"; tied to sampler.max_length
  c.max_length = config_dict.placeholder(int)
  return c


def mismatch_settings() -> ConfigDict:
  """Returns the settings of `mismatch`."""
  c = ConfigDict()
  # importance weight pi_old / pi_sampler: none, truncate (to the cap), mask (0 above the cap)
  c.mismatch = "none"
  c.mismatch_level = "token"  # or sequence: the product over its tokens
  c.mismatch_cap = 2.0  # the largest weight
  return c


def sampled_settings() -> ConfigDict:
  """Returns the settings of objectives that average over completions that a policy sampled."""
  c = aggregation_settings()
  c.mask_truncated = False  # leave completions that were cut off out of the loss
  c.update(mismatch_settings())
  return c


def clip_settings() -> ConfigDict:
  """Returns the settings of a clip of the ratio, for both signs of the advantage."""
  c = ConfigDict()
  c.clip_low = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
  c.clip_high = 0.2
  c.clip_delta = 0.0  # two-sided clip: upper bound of the ratio where A < 0; 0: off
  return c


def check_choice(cfg: Any, setting: str, choices: Collection[str | int]) -> None:
  """Refuses a setting whose value is none of `choices`.

  Raises:
    SettingError: the setting, its value and the choices.
  """
  if cfg[setting] not in choices:
    raise SettingError(f"{setting}={cfg[setting]!r}: use one of {', '.join(map(str, choices))}")


def check_at_least(cfg: Any, least: float, *settings: str) -> None:
  """Refuses numbers below `least`.

  Raises:
    SettingError: the setting, its value and the range.
  """
  for setting in settings:
    if not cfg[setting] >= least:
      raise SettingError(f"{setting}={cfg[setting]!r}: use a finite number of at least {least:g}")


def check_between(cfg: Any, least: float, most: float, *settings: str) -> None:
  """Refuses numbers below `least` or above `most`.

  Raises:
    SettingError: the setting, its value and the range.
  """
  for setting in settings:
    if not least <= cfg[setting] <= most:
      raise SettingError(f"{setting}={cfg[setting]!r}: use a number from {least:g} to {most:g}")


def check_aggregation(cfg: Any) -> None:
  """Refuses an unknown aggregation, and "constant" without the constant."""
  check_choice(cfg, "aggregation", masked.AGGREGATIONS)
  if cfg.aggregation == "constant" and not cfg.max_length:
    raise SettingError(
      f"max_length={cfg.max_length!r} with aggregation='constant': it divides by the length; make "
      "the section by "
      "defaults.objective(name, c), which ties it to sampler.max_length"
    )


def check_mismatch(cfg: Any) -> None:
  """Refuses an unknown mismatch correction, and a cap that lets nothing through."""
  check_choice(cfg, "mismatch", surrogate.MISMATCHES)
  check_choice(cfg, "mismatch_level", surrogate.MISMATCH_LEVELS)
  if not cfg.mismatch_cap > 0:
    raise SettingError(f"mismatch_cap={cfg.mismatch_cap!r}: use a finite number above 0")


def check_sampled(cfg: Any) -> None:
  """Refuses an unknown aggregation or mismatch correction: the `check` of `sampled_settings`."""
  check_aggregation(cfg)
  check_mismatch(cfg)


def check_clip(cfg: Any) -> None:
  """Refuses bounds on the wrong side of 1, and a two-sided clip inside the ordinary one:
  `clip_settings`' check.

  Raises:
    SettingError: a negative number, or a clip_delta that is on and not above 1 + clip_high.
  """
  check_at_least(cfg, 0, "clip_low", "clip_high", "clip_delta")
  if cfg.clip_delta and cfg.clip_delta <= 1.0 + cfg.clip_high:
    raise SettingError(
      f"clip_delta={cfg.clip_delta}: use 0 (off) or more than 1 + clip_high = {1.0 + cfg.clip_high}"
    )


def no_other_pass(cfg: Any) -> frozenset[str]:
  """Returns the `needs` of an objective that reads the trained policy alone: none."""
  del cfg
  return frozenset()


def scores_alone(cfg: Any) -> frozenset[str]:
  """Returns the `needs` of an objective that trains a reward model."""
  del cfg
  return frozenset({"scores"})


def require(value: Any, name: str, objective: str) -> Any:
  """Returns `value`, an array that these rollouts must have.

  Raises:
    SettingError: it is None.
  """
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


def weights(mask: Array, lengths: Array, cfg: Any) -> Array:
  """Returns the weights [P, G, L] under `cfg.aggregation`: the `weights` of most objectives."""
  return masked.token_weights(mask, lengths, cfg.aggregation, cfg.max_length)


def sequence_mean_weights(mask: Array, lengths: Array, cfg: Any) -> Array:
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


def flat_advantages(rollouts: Rollouts, cfg: Any) -> Array:
  """Returns which groups have advantage 0 on every token, [P] bool: the `flat` of objectives that
  name an advantage.
  """
  return jnp.all(cfg.advantage(rollouts) == 0.0, axis=(1, 2))


def flat_totals(rollouts: Rollouts, cfg: Any) -> Array:
  """Returns which groups were given equal rewards, [P] bool: the `flat` of objectives that compare
  within a group.
  """
  del cfg
  return adv.flat(rollouts.rewards, rollouts.given)


def flat_never(rollouts: Rollouts, cfg: Any) -> Array:
  """Returns False for each group, [P]: the `flat` of objectives that learn from every completion."""
  del cfg
  return jnp.zeros(rollouts.tokens.shape[0], bool)


def pair_signs(rollouts: Rollouts, cfg: Any, mask: Array) -> Array:
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


def mismatch(old: Array, batch: TrainBatch, cfg: Any) -> Array:
  """Returns the weight pi_old / pi_sampler that `cfg.mismatch` asks for, [P, G, L] or [P, G, 1].

  Both policies are of the full softmax: what top-k, top-p and min-p cut off is not a mismatch.
  """
  if cfg.mismatch == "none":
    return jnp.ones_like(batch.mask)
  sampler = on_mask(require(batch.sampler_logprobs, "sampler_logprobs", cfg.name), batch.mask)
  return surrogate.mismatch_weight(
    old, sampler, batch.mask, cfg.mismatch, cfg.mismatch_level, cfg.mismatch_cap
  )


# -- ratios and bounds, as contract.py asks for them


def token_ratio(logprobs: Array, old: Array, mask: Array, cfg: Any) -> Array:
  """Returns pi / pi_old of each token, [P, G, L]: the `importance_ratio` of objectives that clip by
  token.
  """
  del mask, cfg
  return surrogate.token_ratio(logprobs, old)


def ratio_and_largest(
  importance_ratio: Callable, logprobs: Array, old: Array, mask: Array, cfg: Any
) -> tuple[Array, Array]:
  """Returns the ratio, and that of a policy that is certain of what was sampled."""
  ratio, largest = (
    importance_ratio(new, old, mask, cfg) for new in (logprobs, jnp.zeros_like(old))
  )
  return ratio, largest


def clip_bounds(batch: TrainBatch, cfg: Any) -> tuple[float, float]:
  """Returns (1 - clip_low, 1 + clip_high), the `bounds` of objectives that clip all tokens alike."""
  del batch
  return 1.0 - cfg.clip_low, 1.0 + cfg.clip_high


def no_bounds(batch: TrainBatch, cfg: Any) -> tuple[float, float]:
  """Returns (0, infinity), the `bounds` of objectives that clip nothing."""
  del batch, cfg
  return 0.0, jnp.inf


def prepared_advantages(logprobs: Array, batch: TrainBatch) -> Array:
  """Returns the advantages of `prepare`, [P, G, L]: the `live_advantages` of most objectives."""
  del logprobs
  return batch.advantages
