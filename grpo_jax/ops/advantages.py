"""Advantages: what each sampled token was worth, compared with the other samples of its group.

A reward is a pair (rewards, given), both [P, G, L]: a value where `given` is true. Outcome supervision gives one,
on the last token of a completion; process supervision gives one on the last token of each step. The functions do
not ask which: outcome supervision is process supervision with a single step.
"""

import chex
import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import masked
from grpo_jax.types import Array

BASELINES = ("mean", "leave_one_out")
SCALES = ("group", "batch", "none")


def flat(rewards: Array, given: Array, ddof: int = 1) -> Array:
  """[P] bool: groups that teach nothing, since their rewards are all equal or there are no more than ddof.

  Decided by comparison, never by a standard deviation: eight rewards of 0.7 have one of 6e-8 in float32.
  """
  chex.assert_equal_shape((rewards, given))
  largest = jnp.max(jnp.where(given, rewards, -jnp.inf), axis=(1, 2))
  smallest = jnp.min(jnp.where(given, rewards, jnp.inf), axis=(1, 2))
  return (largest == smallest) | (jnp.sum(given, axis=(1, 2)) <= ddof)


def group_relative(
  rewards: Array,
  given: Array,
  baseline: str = "mean",
  scale: str = "group",
  ddof: int = 1,
  eps: float = 1e-4,
) -> Array:
  """Rewards normalised in their group: r~ = (r - mean(R)) / (std(R) + eps), R all rewards given in the group.

  DeepSeekMath, arXiv 2402.03300, 4.1.2 and 4.1.3; without the division, Dr.GRPO (2503.20783).

  Args:
    rewards: [P, G, L] float.
    given: [P, G, L] bool.
    baseline: "mean" of the group, or "leave_one_out": the mean of the rewards of the *other* completions.
    scale: std of the "group", of all rewards of the "batch" (as TRL: raw, not centred), or "none".
    ddof: the std divides by n - ddof.
    eps: added to the std.

  Returns:
    [P, G, L], 0 where nothing was given, exactly 0 in flat groups.

  Raises:
    SettingError: an unknown name, or leave-one-out with a standard deviation.
  """
  chex.assert_rank([rewards, given], 3)
  if scale not in SCALES:
    raise SettingError(f"scale={scale!r}: use one of {', '.join(SCALES)}")
  if baseline not in BASELINES:
    raise SettingError(f"baseline={baseline!r}: use one of {', '.join(BASELINES)}")
  if baseline == "leave_one_out" and scale != "none":
    raise SettingError(f"baseline='leave_one_out' with scale={scale!r}: use scale='none'")
  kept = given.astype(jnp.float32)
  if baseline == "mean":
    centre = masked.masked_mean(rewards, kept, axis=(1, 2), keepdims=True)
  else:
    own, own_count = masked.masked_sum(rewards, kept, 2, True), jnp.sum(kept, 2, keepdims=True)
    others = jnp.sum(own, 1, keepdims=True) - own
    others_count = jnp.sum(own_count, 1, keepdims=True) - own_count
    centre = others / jnp.maximum(others_count, 1.0)
  centred = rewards - centre
  if scale == "group":
    centred = centred / (masked.masked_std(rewards, kept, (1, 2), ddof, keepdims=True) + eps)
  elif scale == "batch":
    centred = centred / (masked.masked_std(rewards, kept, None, ddof) + eps)
  return jnp.where(given & ~flat(rewards, given, ddof)[:, None, None], centred, 0.0)


def returns_to_go(rewards: Array) -> Array:
  """A[t] = sum of rewards[j] over j >= t. Shapes [..., L]; 0 after the last reward, hence on padding."""
  return jax.lax.cumsum(rewards, axis=rewards.ndim - 1, reverse=True)


def sign(rewards: Array, given: Array, margin: float) -> Array:
  """+1, -1 or 0: whether a token's remaining rewards beat the group's mean, 0 within `margin` of it."""
  excess = returns_to_go(group_relative(rewards, given, scale="none"))
  return jnp.sign(excess) * (jnp.abs(excess) > margin)


def gdpo(parts: Array, weights: Array, real: Array, ddof: int = 1, eps: float = 1e-4) -> Array:
  """Several rewards: each normalised in its group, summed with weights, then normalised over the batch.

  GDPO, arXiv 2601.05242. A group in which every reward is flat keeps advantage 0 exactly, where the batch's
  mean (0 up to rounding) would otherwise leave a crumb.

  Args:
    parts: [P, G, N] float, N rewards of each completion.
    weights: [N].
    real: [P, G] bool, false in rows that only fill the batch.

  Returns:
    [P, G].
  """
  chex.assert_rank([parts, real], [3, 2])
  each = jnp.moveaxis(parts, 2, 0)[..., None]  # [N, P, G, 1]

  def normalise(reward):
    return group_relative(reward, real[..., None], ddof=ddof, eps=eps)

  total = jnp.sum(jax.vmap(normalise)(each)[..., 0] * weights[:, None, None], axis=0)
  taught = real & jnp.any(total != 0.0, axis=1, keepdims=True)
  scaled = (total - masked.masked_mean(total, real)) / (masked.masked_std(total, real, None, ddof) + eps)
  return jnp.where(taught, scaled, 0.0)


def gae(rewards: Array, values: Array, lengths: Array, bootstrap: Array, gamma: float, lam: float) -> Array:
  """Generalised advantage estimation (arXiv 1506.02438, eq. 16).

  delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1}

  Args:
    rewards: [..., L] float, of each token.
    values: [..., L] float, V before each token.
    lengths: [...] int.
    bootstrap: [...] float, V after the last token: 0 where the completion ended by itself.

  Returns:
    [..., L], 0 on padding. The critic's targets are this + values.
  """
  chex.assert_equal_shape((rewards, values))
  chex.assert_equal_shape((lengths, bootstrap))
  length = rewards.shape[-1]
  index = jnp.arange(length)
  inside = index < lengths[..., None]
  following = jnp.concatenate([values[..., 1:], jnp.zeros_like(values[..., :1])], axis=-1)
  following = jnp.where(index == lengths[..., None] - 1, bootstrap[..., None], following)
  delta = jnp.where(inside, rewards + gamma * following - values, 0.0)

  def back(carry, delta_t):
    advantage = delta_t + gamma * lam * carry
    return advantage, advantage

  _, advantages = jax.lax.scan(back, jnp.zeros_like(bootstrap), jnp.moveaxis(delta, -1, 0), reverse=True)
  return jnp.where(inside, jnp.moveaxis(advantages, 0, -1), 0.0)


def shared_prefix(tokens: Array, lengths: Array) -> Array:
  """[P, G, G] int32: how many first tokens two completions of a group have in common."""
  chex.assert_rank([tokens, lengths], [3, 2])
  inside = jnp.arange(tokens.shape[2]) < lengths[..., None]

  def of_group(tokens, inside):
    same = (tokens[:, None] == tokens[None]) & inside[:, None] & inside[None]
    return jnp.sum(jnp.cumprod(same.astype(jnp.int32), axis=-1), axis=-1)

  return jax.vmap(of_group)(tokens, inside)


def prefix_values(tokens: Array, lengths: Array, scores: Array) -> Array:
  """The value at a prefix, as the mean score of the group's samples through it.

  Args:
    tokens: [P, G, L] int.
    lengths: [P, G] int; a completion of length 0 takes no part.
    scores: [P, G] float.

  Returns:
    [P, G, L + 1]: entry t is the value before token t, the first one the group's mean, and from the point where
    a completion is alone its own score.
  """
  common = shared_prefix(tokens, lengths)
  real = lengths > 0

  def of_group(common, scores, real):
    through = (common[..., None] >= jnp.arange(tokens.shape[2] + 1)) & real[None, :, None]  # [G, G, L + 1]
    # a completion is always on its own path, also after its end
    through = through | (jnp.eye(real.shape[0], dtype=bool)[..., None] & real[None, :, None])
    return masked.masked_mean(jnp.broadcast_to(scores[None, :, None], through.shape), through, axis=1)

  return jax.vmap(of_group)(common, scores, real)


def prefix_credit(tokens: Array, lengths: Array, scores: Array) -> Array:
  """Token credit from shared prefixes: A[t] = V(prefix with token t) - V(prefix before it). [P, G, L].

  The credits of a completion add up to its score less the group's mean (identical completions share the mean of
  their scores); all of it falls on the tokens at which the group's samples part, none on tokens that all of those on
  the path took.
  """
  values = prefix_values(tokens, lengths, scores)
  inside = jnp.arange(tokens.shape[2]) < lengths[..., None]
  return jnp.where(inside, values[..., 1:] - values[..., :-1], 0.0)
