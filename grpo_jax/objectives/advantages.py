"""The advantages that a config can name: `objective.advantage = "group_relative"`.

An advantage is a function `(rollouts, *, setting, ...) -> [P, G, L]` of a whole batch of scored
rollouts. What it takes by keyword is filled from the objective's settings of the same name; a
parameter without such a setting keeps its own default. A function of yours is named by its import
path or file: "package.module:function", "my_file.py:function".

    def rank(rollouts, *, eps=1e-4):
      ...

It gives credit and nothing else: the objective multiplies by its mask, takes off the KL and stops
the gradient. Of the rollouts, `rewards` and `given` are [P, G, L], `components` [P, G, N] and
`lengths` [P, G].
"""

import jax.numpy as jnp

from grpo_jax.objectives import common
from grpo_jax.ops import advantages as adv
from grpo_jax.types import Array, Rollouts


def group_relative(
  rollouts: Rollouts, *, baseline: str, scale: str, ddof: int, eps: float
) -> Array:
  """Returns GRPO's advantage [P, G, L]: rewards normalised in their group, summed from each token
  on.

      A[t] = sum over given rewards j >= t of (r[j] - mean(R)) / (std(R) + eps)

  DeepSeekMath, arXiv 2402.03300, 4.1.2 and 4.1.3; with scale="none" Dr.GRPO's, 2503.20783.
  """
  return adv.returns_to_go(
    adv.group_relative(rollouts.rewards, rollouts.given, baseline, scale, ddof, eps)
  )


def step_returns(rollouts: Rollouts, *, scale: str, ddof: int, eps: float) -> Array:
  """Returns what is still to come of a completion's rewards, less the group's mean from the same
  step on. [P, G, L].

  See `ops.advantages.step_returns`. With one reward for every completion of a group it is
  `group_relative`'s; a completion that was given none counts as one of which nothing is to come.
  """
  return adv.step_returns(rollouts.rewards, rollouts.given, rollouts.lengths > 0, scale, ddof, eps)


def gdpo(rollouts: Rollouts, *, reward_weights: tuple[float, ...], ddof: int, eps: float) -> Array:
  """Returns GDPO's advantage [P, G, L]: each reward component normalised in its group, the sum over
  the batch.

  arXiv 2601.05242. All tokens of a completion have the same.
  """
  components = common.require(rollouts.components, "components (of several rewards)", "gdpo")
  weights = jnp.asarray(tuple(reward_weights) or (1.0,) * components.shape[2])
  relative = adv.gdpo(components, weights, rollouts.lengths > 0, ddof, eps)
  last = common.last_token(rollouts.lengths, rollouts.tokens.shape[2])
  return adv.returns_to_go(relative[..., None] * last)


def prefix_credit(rollouts: Rollouts, *, baseline: str, scale: str, ddof: int, eps: float) -> Array:
  """Returns `group_relative`'s advantage of each completion, put on the tokens where samples with
  one prefix part.

  [P, G, L]; see `ops.advantages.prefix_credit`.
  """
  relative = adv.group_relative(rollouts.rewards, rollouts.given, baseline, scale, ddof, eps)
  return adv.prefix_credit(rollouts.tokens, rollouts.lengths, jnp.sum(relative, axis=2))
