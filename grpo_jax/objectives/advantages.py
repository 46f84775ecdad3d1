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

from grpo_jax.objectives import common
from grpo_jax.ops import advantages as adv
from grpo_jax.types import Array, Rollouts


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

  With one reward for every completion it is `group_relative`. A completion without a reward counts
  as 0. See `ops.advantages.step_returns`.
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
  rewards = common.scored(rollouts, "prefix_credit")
  relative = adv.group_relative(*rewards, baseline, scale, ddof, eps)
  return adv.prefix_credit(rollouts.tokens, rollouts.lengths, jnp.sum(relative, axis=2))
