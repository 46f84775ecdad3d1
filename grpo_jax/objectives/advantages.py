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

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.ops import advantages as adv
from grpo_jax.types import Array, Rollouts

LARGEST_WEIGHT = 1e6  # as of a reward: sums stay finite in float32


def settings() -> ConfigDict:
  """Returns the settings of the advantage; one that the named function does not take must stay at
  its default.
  """
  c = ConfigDict()
  c.advantage = "group_relative"  # or step_returns, gdpo, prefix_credit, or a function of yours
  # what a reward is compared with: the group's mean, or leave_one_out (the others' mean)
  c.baseline = "mean"
  c.scale = "group"  # then divided by the std of: group, batch, none
  c.ddof = 1  # of that std: 1 divides by n - 1, 0 by n
  c.eps = 1e-4  # added to it
  c.reward_weights = ()  # gdpo: of each reward after it is normalised; empty: equal
  return c


def check(cfg: Any) -> None:
  """Refuses unknown names, and leave-one-out with a standard deviation.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  common.check_choice(cfg, "baseline", adv.BASELINES)
  common.check_choice(cfg, "scale", adv.SCALES)
  common.check_choice(cfg, "ddof", (0, 1))
  common.check_at_least(cfg, 0, "eps")
  if not all(
    isinstance(weight, int | float) and not isinstance(weight, bool)
    for weight in cfg.reward_weights
  ):
    raise SettingError(
      f"reward_weights={cfg.reward_weights!r}: use a tuple of numbers, as in (1.0, 0.5)"
    )
  if cfg.reward_weights and not 0 < max(map(abs, cfg.reward_weights)) <= LARGEST_WEIGHT:
    raise SettingError(
      f"reward_weights={cfg.reward_weights!r}: use numbers of at most {LARGEST_WEIGHT:g} either "
      "way, one of them not 0"
    )
  if cfg.baseline == "leave_one_out" and cfg.scale != "none":
    raise SettingError(f"scale={cfg.scale!r} with baseline='leave_one_out': use scale='none'")


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
