"""Computes advantages: the worth of each sampled token, compared with the group's other samples.

A reward is a pair (rewards, given), both [P, G, L]: a value where `given` is true. Outcome
supervision gives one, on the last token of a completion; process supervision gives one on the last
token of each step. Outcome supervision is thus process supervision with a single step, and no
function treats it apart. Nothing is broadcast.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.ops import masked
from grpo_jax.types import Array

Triple = tuple[Array, Array, Array]
BASELINES = ("mean", "leave_one_out")
SCALES = ("group", "batch", "advantages", "none")


def totals(rewards: Array | np.ndarray, given: Array | np.ndarray) -> Array | np.ndarray:
  """Returns the sum of the rewards given to each completion, [P, G] float32.

  numpy arrays stay numpy and add up in float64, so that the same rewards in another order have the
  same total.
  """
  chex.assert_rank(rewards, 3)
  chex.assert_equal_shape((rewards, given))
  wide = np.float64 if isinstance(rewards, np.ndarray) else np.float32
  return rewards.sum(axis=2, where=given, initial=0.0, dtype=wide).astype(np.float32)


def flat(rewards: Array, given: Array, ddof: int = 1) -> Array:
  """Returns which groups have equal rewards, or at most `ddof` of them, [P] bool.

  Rewards are compared one by one, since the standard deviation of eight rewards of 0.7 is 6e-8 in
  float32.
  """
  chex.assert_rank(rewards, 3)
  chex.assert_equal_shape((rewards, given))
  largest = jnp.max(rewards, axis=(1, 2), where=given, initial=-jnp.inf)
  smallest = jnp.min(rewards, axis=(1, 2), where=given, initial=jnp.inf)
  return (largest <= smallest) | (jnp.sum(given, axis=(1, 2)) <= ddof)


def group_relative(
  rewards: Array,
  given: Array,
  baseline: str = "mean",
  scale: str = "group",
  ddof: int = 1,
  eps: float = 1e-4,
) -> Array:
  """Returns (r - mean(R)) / (std(R) + eps), where R are all rewards given in the group.

  DeepSeekMath, arXiv 2402.03300, 4.1.2 and 4.1.3; without the division, Dr.GRPO (2503.20783).

  Args:
    rewards: [P, G, L] float.
    given: [P, G, L] bool.
    baseline: "mean" of the group, or "leave_one_out", the mean of the *other* completions.
    scale: std of the "group", of all rewards of the "batch" (TRL: not centred), of all "advantages"
      of the batch (ScaleRL, 2510.13786), or "none".
    ddof, eps: the std divides by n - ddof, and eps is added to it.

  Returns:
    [P, G, L], 0 where nothing was given, and exactly 0 in `flat` groups.
  """
  chex.assert_rank(rewards, 3)
  chex.assert_equal_shape((rewards, given))
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
    total, count = masked.masked_sum(rewards, kept, 2, True), jnp.sum(kept, 2, keepdims=True)
    others = jnp.sum(total, 1, keepdims=True) - total
    others_count = jnp.sum(count, 1, keepdims=True) - count
    # a single completion has advantage 0
    centre = jnp.where(others_count > 0, others / jnp.maximum(others_count, 1.0), rewards)
  centred = rewards - centre
  if scale == "group":
    centred = centred / (masked.masked_std(rewards, kept, (1, 2), ddof, keepdims=True) + eps)
  elif scale == "batch":
    centred = centred / (masked.masked_std(rewards, kept, None, ddof) + eps)
  elif scale == "advantages":
    centred = centred / (masked.masked_std(centred, kept, None, ddof) + eps)
  equal = flat(rewards, given, ddof)
  return jnp.where(given & ~equal[:, None, None], centred, 0.0)


def length_weighted(rewards: Array, lengths: Array) -> Array:
  """Returns r - sum(|o| r) / sum(|o|) over the group, [P, G]: OPO, arXiv 2505.23585, eq. 7.

  The baseline with the least variance, if the squared gradient of a completion grows with its
  length. With equal lengths it is the mean.

  Args:
    rewards: [P, G], of whole completions.
    lengths: [P, G], 0 for completions that only fill the batch.
  """
  chex.assert_rank(rewards, 2)
  chex.assert_equal_shape((rewards, lengths))
  weight = lengths.astype(jnp.float32)
  total = jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1.0)
  baseline = jnp.sum(weight * rewards, axis=1, keepdims=True) / total
  return jnp.where(lengths > 0, rewards - baseline, 0.0)


def optimal_token(returns: Array, energy: Array, mask: Array) -> Array:
  """Returns G_t - sum(G_t W_t) / sum(W_t), sums over the group, [P, G, L]: OTB, arXiv 2602.07078.

  W_t is the energy of the tokens up to t, so that a completion counts for as much as its gradient
  has varied so far. With equal energies the baseline is the mean of those that are still alive at
  t. Where one of several is left it has no baseline, as in the authors' code (handle_zero_tail):
  compared with itself it would learn nothing there. The only one of a group has 0, and so has a
  token before which the whole group had no choice.

  Args:
    returns: [P, G, L], G_t, the rewards from t on.
    energy: [P, G, L], the expected squared gradient of the logits at each token, 1 - 2 pi + sum of
      p^2.
    mask: [P, G, L], the tokens of the completions that count.
  """
  chex.assert_rank(returns, 3)
  chex.assert_equal_shape((returns, energy, mask))
  weight = jnp.cumsum(jnp.where(mask > 0, energy, 0.0), axis=2) * mask
  total = jnp.sum(weight, axis=1, keepdims=True)
  baseline = jnp.sum(weight * returns, axis=1, keepdims=True) / jnp.where(total > 0, total, 1.0)
  several = jnp.sum(jnp.any(mask > 0, axis=2), axis=1)[:, None, None] > 1
  alone = several & (jnp.sum(mask, axis=1, keepdims=True) == 1)
  relative = returns - jnp.where(alone, 0.0, baseline)
  return jnp.where((mask > 0) & (total > 0), relative, 0.0)


def returns_to_go(rewards: Array) -> Array:
  """Returns A[t] = sum of rewards[j] over j >= t, 0 after the last reward. Shapes [..., L].

  DeepSeekMath, arXiv 2402.03300, 4.1.3.
  """
  if not rewards.ndim:
    raise AssertionError("returns_to_go of a number: expected [..., L]")
  return jax.lax.cumsum(rewards, axis=rewards.ndim - 1, reverse=True)


def step_returns(
  rewards: Array, given: Array, real: Array, scale: str = "group", ddof: int = 1, eps: float = 1e-4
) -> Array:
  """Returns the rewards from each token on, less the group's mean from the same step on.

      A[t] = (sum over given rewards j >= t of r[j] - V[k]) / (rms + eps)
      k    = the number of rewards before t
      V[k] = the mean over the group of the rewards from the k-th on, 0 past a completion's last

  So a completion with fewer steps is also compared with the rewards of the steps that it lacks.
  `group_relative` compares each reward with the mean of all rewards of the group. If most of its
  advantages are negative, a completion with fewer steps adds up fewer of them and is preferred.

  Args:
    rewards: [P, G, L] float.
    given: [P, G, L] bool.
    real: [P, G] bool, false for completions that only fill the batch.
    scale: rms of the differences over the "group", the "batch" (likewise "advantages"), or "none".
    ddof, eps: the rms of n steps divides by n - ddof, and eps is added to it.

  Returns:
    [P, G, L], 0 after the last reward, and exactly 0 where all completions have the same return.
  """
  chex.assert_rank(rewards, 3)
  chex.assert_equal_shape((rewards, given))
  if scale not in SCALES:
    raise SettingError(f"scale={scale!r}: use one of {', '.join(SCALES)}")
  kept = given.astype(jnp.float32)
  to_come = returns_to_go(jnp.where(given, rewards, 0.0))
  # the number of rewards before each token
  step = (jnp.cumsum(kept, axis=2) - kept).astype(jnp.int32)
  centred = jax.vmap(_less_the_steps_mean)(to_come, step, given, real)
  centred = jnp.where(returns_to_go(kept) > 0, centred, 0.0)
  if scale != "none":
    over = (1, 2) if scale == "group" else None
    squares = masked.masked_sum(centred**2, kept, over, True)
    std = jnp.sqrt(squares / jnp.maximum(jnp.sum(kept, over, keepdims=True) - ddof, 1.0))
    centred = jnp.where(squares > 0.0, centred / (std + eps), 0.0)
  return centred


def _less_the_steps_mean(to_come: Array, step: Array, given: Array, real: Array) -> Array:
  """Returns `to_come` [G, L] of one group less its mean at each token's step.

  A completion without that step counts as 0.
  """
  samples, length = to_come.shape
  # the reward that ends step k holds the return from there on
  at = jnp.where(given, step, length)
  by_step = jnp.zeros((samples, length), to_come.dtype)
  by_step = by_step.at[jnp.arange(samples)[:, None], at].set(to_come, mode="drop")  # [G, K]
  mean = masked.masked_mean(by_step, jnp.broadcast_to(real[:, None], by_step.shape), axis=0)
  most = jnp.max(by_step, axis=0, where=real[:, None], initial=-jnp.inf)
  least = jnp.min(by_step, axis=0, where=real[:, None], initial=jnp.inf)
  mean = jnp.where(most == least, most, mean)  # a sum of equal numbers is rounded
  return to_come - jnp.take(mean, jnp.minimum(step, length - 1))


def sign(rewards: Array, given: Array, margin: float) -> Array:
  """Returns +1 where a token's remaining rewards beat the group's mean, -1 where they fall short.

  Within `margin` of the mean it is 0. Shapes [P, G, L].
  """
  excess = returns_to_go(group_relative(rewards, given, scale="none"))
  return jnp.sign(excess) * (jnp.abs(excess) > margin)


def gdpo(components: Array, weights: Array, real: Array, ddof: int = 1, eps: float = 1e-4) -> Array:
  """Returns (S - mean(S)) / (std(S) + eps) over the batch: GDPO, arXiv 2601.05242.

  S is the weighted sum over rewards of (r - mean(R)) / (std(R) + eps) in the group. A group in
  which every reward is flat keeps advantage 0 exactly; the batch's mean, 0 up to rounding, would
  leave a small remainder. A completion without any reward has advantage 0 and does not count.

  Args:
    components: [P, G, N] float, N rewards of each completion; NaN, which adds 0, where one is None.
    weights: [N].
    real: [P, G] bool, false in groups that only fill the batch.
    ddof: both standard deviations divide by n - ddof.
    eps: added to both.

  Returns:
    [P, G].
  """
  chex.assert_rank(components, 3)
  chex.assert_shape(real, components.shape[:2])
  chex.assert_shape(weights, components.shape[2:])
  components_NxPxGx1 = jnp.moveaxis(components, 2, 0)[..., None]

  def normalise(reward: Array) -> Array:
    given = real[..., None] & ~jnp.isnan(reward)
    return group_relative(jnp.where(given, reward, 0.0), given, ddof=ddof, eps=eps)

  total = jnp.sum(jax.vmap(normalise)(components_NxPxGx1)[..., 0] * weights[:, None, None], axis=0)
  scored = real & ~jnp.all(jnp.isnan(components), axis=2)
  taught = scored & jnp.any(total != 0.0, axis=1, keepdims=True)
  spread = masked.masked_std(total, scored, None, ddof) + eps
  return jnp.where(taught, (total - masked.masked_mean(total, scored)) / spread, 0.0)


def gae(
  rewards: Array,
  values: Array,
  mask: Array,
  bootstrap: Array,
  gamma: float,
  lam: float | Array,
) -> Array:
  """Returns the advantages of generalised advantage estimation (arXiv 1506.02438, eq. 16).

  delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1}

  Only sampled tokens are steps: t + 1 is the next one of them, and a reward on another token counts
  with the one before it.

  Args:
    rewards: [..., L] float, of each token.
    values: [..., L] float, V before each token.
    mask: [..., L], the tokens that are steps.
    bootstrap: [...] float, V after the last token: 0 where the completion ended by itself.
    gamma: the discount.
    lam: the decay of the deltas of later tokens, one or [...].

  Returns:
    [..., L], 0 off the mask. The critic's targets are this + values.
  """
  chex.assert_equal_shape((rewards, values, mask))
  chex.assert_shape(bootstrap, rewards.shape[:-1])

  def back(later: Triple, token: Triple) -> tuple[Triple, Array]:
    """`later` has A and V of the next step, and the rewards before it that are no step's."""
    advantage, following, between = later
    reward, value, is_step = token
    delta = reward + between + gamma * following - value
    now = (delta + gamma * lam * advantage, value, jnp.zeros_like(between))
    skipped = (advantage, following, between + reward)
    kept = jax.tree.map(functools.partial(jnp.where, is_step), now, skipped)
    return kept, kept[0]

  zero = jnp.zeros_like(bootstrap)
  by_token = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), (rewards, values, mask > 0))
  _, advantages = jax.lax.scan(back, (zero, bootstrap, zero), by_token, reverse=True)
  return jnp.where(mask > 0, jnp.moveaxis(advantages, 0, -1), 0.0)


def shared_prefix(tokens: Array, lengths: Array) -> Array:
  """Returns the length of the common prefix of each two completions of a group, [P, G, G] int32."""
  chex.assert_rank(tokens, 3)
  chex.assert_shape(lengths, tokens.shape[:2])
  inside = jnp.arange(tokens.shape[2]) < lengths[..., None]

  def in_group(tokens, inside):
    same = (tokens[:, None] == tokens[None]) & inside[:, None] & inside[None]
    return jnp.sum(jnp.cumprod(same.astype(jnp.int32), axis=-1), axis=-1)

  return jax.vmap(in_group)(tokens, inside)


def prefix_values(tokens: Array, lengths: Array, scores: Array) -> Array:
  """Returns the value of every prefix: the mean score of the group's samples that begin with it.

  Args:
    tokens: [P, G, L] int.
    lengths: [P, G] int; a completion of length 0 takes no part.
    scores: [P, G] float.

  Returns:
    [P, G, L + 1]: entry t is the value before token t. The first is the group's mean; once a
    completion shares its prefix with no other, it is its own score.
  """
  chex.assert_shape(scores, lengths.shape)
  common = shared_prefix(tokens, lengths)
  real = lengths > 0

  def in_group(common, scores, real):
    # [G, G, L + 1]
    through = (common[..., None] >= jnp.arange(tokens.shape[2] + 1)) & real[None, :, None]
    # a completion is always on its own path, also after its end
    through = through | (jnp.eye(real.shape[0], dtype=bool)[..., None] & real[None, :, None])
    return masked.masked_mean(
      jnp.broadcast_to(scores[None, :, None], through.shape), through, axis=1
    )

  return jax.vmap(in_group)(common, scores, real)


def prefix_credit(tokens: Array, lengths: Array, scores: Array) -> Array:
  """Returns A[t] = V(prefix with token t) - V(prefix before it), [P, G, L], by `prefix_values`.

  The credits of a completion add up to its score less the group's mean (identical completions share
  the mean of their scores). They fall on the tokens at which samples with the same prefix differ.
  """
  values = prefix_values(tokens, lengths, scores)
  inside = jnp.arange(tokens.shape[2]) < lengths[..., None]
  return jnp.where(inside, values[..., 1:] - values[..., :-1], 0.0)
