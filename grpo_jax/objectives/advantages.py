"""Defines the advantages that a config can name: `objective.advantage = "group_relative"`.

An advantage is a function of a whole batch of scored rollouts. Its keyword parameters are filled
from the objective's settings of the same name; a parameter without such a setting keeps its
default. Yours is named by import path or file: "package.module:function", "my_file.py:function".

    def rank(rollouts, *, eps=1e-4):
      ...  # [P, G, L]

The objective multiplies by its mask, subtracts a KL and stops the gradient. In the rollouts,
`rewards` and `given` are [P, G, L], `components` [P, G, N] and `lengths` [P, G].
"""

import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import masked
from grpo_jax.ops import mismatch as of_sampler
from grpo_jax.ops import pass_at_k as for_pass_at_k
from grpo_jax.types import Array, Rollouts

LEAST_ENERGY = 1e-6  # of OTB: less is the rounding of a token with a probability of 1
READ_OLD_POLICY = ("otb",)  # advantages that read the old policy's probabilities
WITH_KL = ("reinforce_pp",)  # advantages that take off the KL of `kl_in_reward` themselves
RIGHT = 0.5  # a completion with a larger total reward is right
LEAST_VARIANCE = 1e-8  # of REINFORCE++, by its authors' code


def group_relative(
  rollouts: Rollouts, *, baseline: str, scale: str, ddof: int, eps: float
) -> Array:
  """Returns GRPO's advantage [P, G, L]: rewards normalised in their group, as returns.

      A[t] = sum over given rewards j >= t of (r[j] - mean(R)) / (std(R) + eps)

  DeepSeekMath, arXiv 2402.03300, 4.1.2 and 4.1.3; with scale="none" Dr.GRPO's, 2503.20783.
  """
  rewards = common.scored(rollouts, "group_relative")
  return adv.returns_to_go(adv.group_relative(*rewards, baseline, scale, ddof, eps))


def step_returns(rollouts: Rollouts, *, scale: str, ddof: int, eps: float) -> Array:
  """Returns the rewards from each token on, less the group's mean from the same step on, [P, G, L].

  With scale="group" it is divided by the root mean square of these differences in the group. With
  one reward for every completion it is `group_relative`. A completion without a reward counts as 0.
  See `ops.advantages.step_returns`.
  """
  rewards = common.scored(rollouts, "step_returns")
  return adv.step_returns(*rewards, rollouts.lengths > 0, scale, ddof, eps)


def gdpo(rollouts: Rollouts, *, reward_weights: tuple[float, ...], ddof: int, eps: float) -> Array:
  """Returns GDPO's advantage [P, G, L] (arXiv 2601.05242), the same on all tokens of a completion.

  Each reward component is normalised in its group, and their weighted sum over the batch.
  """
  components = common.require(rollouts.components, "components (of several rewards)", "gdpo")
  weights = jnp.asarray(tuple(reward_weights) or (1.0,) * components.shape[2])
  relative = adv.gdpo(components, weights, rollouts.lengths > 0, ddof, eps)
  last = common.last_token(rollouts.lengths, rollouts.tokens.shape[2])
  return adv.returns_to_go(relative[..., None] * last)


def prefix_credit(rollouts: Rollouts, *, baseline: str, scale: str, ddof: int, eps: float) -> Array:
  """Returns `group_relative`, moved to the tokens where samples with one prefix part, [P, G, L].

  See `ops.advantages.prefix_credit`.
  """
  rewards, given = common.scored(rollouts, "prefix_credit")
  relative = adv.group_relative(rewards, given, baseline, scale, ddof, eps)
  lengths = jnp.where(jnp.any(given, axis=2), rollouts.lengths, 0)  # others take no part
  return adv.prefix_credit(rollouts.tokens, lengths, jnp.sum(relative, axis=2))


def maxrl(rollouts: Rollouts) -> Array:
  """Returns MaxRL's advantage [P, G, L], (r - mean) / mean (arXiv 2602.02710).

  A total reward below 0 counts as 0.
  """
  total, scored, equal = _outcomes(rollouts, "maxrl")
  return _on_tokens(jnp.where(equal, 0.0, for_pass_at_k.maxrl(total, scored)), rollouts)


def pass_at_k(rollouts: Rollouts, *, attempts: int) -> Array:
  """Returns the advantage of pass@k training [P, G, L] (arXiv 2508.10751), with k = `attempts`.

  A completion is right if its total reward is above RIGHT.
  """
  total, scored, _ = _outcomes(rollouts, "pass_at_k")
  _check_attempts(attempts, total.shape[1])
  return _on_tokens(for_pass_at_k.pass_at_k(total > RIGHT, scored, attempts), rollouts)


def pkpo(rollouts: Rollouts, *, attempts: int) -> Array:
  """Returns PKPO's rewards as advantages [P, G, L] (arXiv 2505.15201), with k = `attempts`.

  A completion is right if its total reward is above RIGHT; a wrong one has 0. So has a right one
  where fewer than k - 1 of the group are wrong.
  """
  total, scored, _ = _outcomes(rollouts, "pkpo")
  _check_attempts(attempts, total.shape[1])
  return _on_tokens(for_pass_at_k.pkpo(total > RIGHT, scored, attempts), rollouts)


def opo(rollouts: Rollouts) -> Array:
  """Returns the reward less the group's mean by length, [P, G, L] (OPO, arXiv 2505.23585).

  For one update on a rollout and no KL, as in the paper.
  """
  total, scored, equal = _outcomes(rollouts, "opo")
  lengths = common.sampled_lengths(rollouts)
  relative = adv.length_weighted(total, jnp.where(scored, lengths, 0))
  return _on_tokens(jnp.where(equal, 0.0, relative), rollouts)


def otb(
  rollouts: Rollouts,
  *,
  mismatch: str = "none",
  mismatch_low: float = 0.0,
  mismatch_high: float = 0.0,
) -> Array:
  """Returns the return less the optimal baseline of each token, [P, G, L] (OTB, arXiv 2602.07078).

  The baseline is the group's mean at the t-th sampled token, weighted by how much the gradient of a
  completion has varied up to it. A weight w for the sampler's mismatch multiplies that gradient,
  and w^2 what a token adds to its variation. It reads the old policy's probabilities. See
  `ops.advantages.optimal_token`.
  """
  rewards, given = common.scored(rollouts, "otb")
  old = common.require(rollouts.old_logprobs, "old_logprobs", "otb")
  squares = common.require(rollouts.old_sum_of_squares, "old_sum_of_squares", "otb")
  scored = common.sampled_mask(rollouts) * jnp.any(given, axis=2, keepdims=True)
  energy = 1.0 - 2.0 * jnp.exp(common.on_mask(old, scored)) + common.on_mask(squares, scored)
  energy = jnp.where(energy > LEAST_ENERGY, energy, 0.0)
  if mismatch != "none":
    mu = common.require(rollouts.sampler_logprobs, "sampler_logprobs", "otb")
    w = of_sampler.weight(old - mu, scored, mismatch, mismatch_low, mismatch_high)
    energy = energy * w**2
  returns = adv.returns_to_go(jnp.where(given, rewards, 0.0))
  relative = common.by_sampled_token(rollouts, adv.optimal_token, returns, energy, scored)
  equal = adv.flat(rewards, given)[:, None] & _outcomes(rollouts, "otb")[2]  # steps and totals
  return jnp.where(equal[..., None], 0.0, relative)


def reinforce_pp(
  rollouts: Rollouts, *, beta: float = 0.0, kl_in_reward: bool = False, kl_estimator: str = "k1"
) -> Array:
  """Returns the returns [P, G, L], normalised over all tokens of the batch (arXiv 2501.03262).

      A[t] = (x[t] - mean(x)) / std(x)
      x[t] = sum over given rewards j >= t of r[j] - beta sum over tokens j >= t of KL[j]

  REINFORCE++: a long completion counts for more of the mean and the std. As the paper's, the std
  divides by n. The KL is that of `kl_in_reward`, in the paper with k1; `flat`, which asks before
  there are log-probs, gets the returns without it.
  """
  rewards, given = common.scored(rollouts, "reinforce_pp")
  returns = adv.returns_to_go(jnp.where(given, rewards, 0.0))
  if beta and kl_in_reward and rollouts.ref_logprobs is not None:
    mask = common.sampled_mask(rollouts)
    returns = returns - beta * common.kl_to_come(rollouts, mask, kl_estimator, "reinforce_pp")
  return _over_tokens(returns, given, rollouts)


def reinforce_pp_baseline(rollouts: Rollouts) -> Array:
  """Returns `reinforce_pp` of the rewards less their group's mean, [P, G, L] (arXiv 2501.03262)."""
  rewards, given = common.scored(rollouts, "reinforce_pp_baseline")
  relative = adv.group_relative(rewards, given, "mean", "none", 1, 0.0)
  return _over_tokens(adv.returns_to_go(relative), given, rollouts)


def _outcomes(rollouts: Rollouts, name: str) -> tuple[Array, Array, Array]:
  """Returns the total reward of each completion and whether it has one, [P, G]; and whether all
  totals of a group are equal, [P, 1].
  """
  rewards, given = common.scored(rollouts, name)
  total, scored = jnp.asarray(adv.totals(rewards, given)), jnp.any(given, axis=2)
  largest = jnp.max(total, axis=1, where=scored, initial=-jnp.inf, keepdims=True)
  smallest = jnp.min(total, axis=1, where=scored, initial=jnp.inf, keepdims=True)
  return total, scored, largest <= smallest


def _on_tokens(advantages: Array, rollouts: Rollouts) -> Array:
  """Returns the numbers [P, G] of completions on all of their tokens, [P, G, L]."""
  return advantages[..., None] * common.sampled_mask(rollouts)


def _over_tokens(returns: Array, given: Array, rollouts: Rollouts) -> Array:
  """Returns (x - mean) / std over the tokens of all completions with a reward, 0 elsewhere.

  Shapes are [P, G, L].
  """
  mask = common.sampled_mask(rollouts) * jnp.any(given, axis=2, keepdims=True)
  centred = returns - masked.masked_mean(returns, mask)
  variance = masked.masked_mean(centred**2, mask)
  # where all are equal, the difference from their mean is rounding
  varies = jnp.max(returns, where=mask > 0, initial=-jnp.inf) > jnp.min(
    returns, where=mask > 0, initial=jnp.inf
  )
  normalised = centred / jnp.sqrt(jnp.maximum(variance, LEAST_VARIANCE))
  return jnp.where((mask > 0) & varies, normalised, 0.0)


def _check_attempts(attempts: int, group: int) -> None:
  if attempts > group:
    raise SettingError(
      f"attempts={attempts}: pass@{attempts} needs groups of at least as many; use at most "
      f"sampler.group={group}"
    )
