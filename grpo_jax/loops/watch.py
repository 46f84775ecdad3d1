"""Warnings about a run that goes on and learns nothing, or something else than it should."""

import collections
import statistics
from collections.abc import Mapping
from typing import Any

from grpo_jax import metrics

STEPS = 10  # in a row, before there is a warning
NEARLY_ALL = 0.95
# From hardly any completion cut off to so many, within a run: the policy has found that it need not end. It goes from
# one to the other in a few steps, so that it is told after fewer of them.
FEW, MANY, SOON = 0.1, 0.5, 3
FALLEN = 0.5  # of the reward that the first steps had

HACKED = (
  "look at samples.jsonl: rewards of steps that are compared one by one pay for having few of them "
  "(objective.advantage=step_returns does not), and a smaller learner.lr or a KL (objective.beta) holds the policy"
)


class Watch:
  """Looks at the metrics of every step, and warns once when many steps in a row show the same trouble."""

  def __init__(self, max_length: int):
    """Takes `sampler.max_length`, for the message."""
    self.max_length = max_length
    self.flat, self.cut_off, self.many = 0, 0, 0  # steps in a row
    self.least_cut_off = 1.0  # the smallest share so far
    self.rewards: collections.deque[float] = collections.deque(maxlen=STEPS)  # of the last steps
    self.first_reward: float | None = None  # mean of the first steps

  def __call__(self, numbers: Mapping[str, Any], writer: metrics.Writer) -> None:
    """Counts one step.

    Args:
      numbers: its metrics; those that a loop does not have are not looked at.
      writer: prints the warning.
    """
    truncated, mean = float(numbers.get("truncated", 0.0)), float(numbers.get("reward/mean", float("nan")))
    self.flat = self.flat + 1 if float(numbers.get("zero_variance", 0.0)) >= 1.0 else 0
    self.cut_off = self.cut_off + 1 if truncated >= NEARLY_ALL else 0
    self.least_cut_off = min(self.least_cut_off, truncated)
    self.many = self.many + 1 if truncated >= MANY and self.least_cut_off <= FEW else 0
    if self.flat == STEPS:
      writer.warn(
        "zero_variance",
        f"in {STEPS} steps no group had an advantage, so nothing is learned (reward/mean is {mean:.3g}): look at what "
        "was sampled in samples.jsonl; where all fail, use easier problems, a better start (init_from) or a reward of "
        "more values; where all succeed, harder problems; a larger sampler.group helps in both",
      )
    if self.cut_off == STEPS:
      writer.warn(
        "truncated",
        f"in {STEPS} steps at least {NEARLY_ALL:.0%} of the completions were cut off at sampler.max_length="
        f"{self.max_length}: raise it, check that the model ends its answers (sampler.stop, data.chat), or reward "
        "shorter ones (length.overlong)",
      )
    if self.many == SOON:
      writer.warn(
        "more truncated",
        f"{truncated:.0%} of the completions are now cut off at sampler.max_length={self.max_length}, where it was "
        f"{self.least_cut_off:.0%} before, and reward/mean is {mean:.3g}: {HACKED}",
      )
    self._reward(mean, writer)

  def _reward(self, mean: float, writer: metrics.Writer) -> None:
    """Warns where the reward that the policy is trained on has fallen to half of what the first steps had."""
    if mean != mean:  # NaN: there was none
      return
    self.rewards.append(mean)
    if len(self.rewards) < STEPS:
      return
    now = statistics.fmean(self.rewards)
    self.first_reward = now if self.first_reward is None else self.first_reward
    if self.first_reward > 0 and now < FALLEN * self.first_reward:
      writer.warn(
        "reward",
        f"reward/mean was {self.first_reward:.3g} in the first {STEPS} steps and is {now:.3g} in the last {STEPS}, so "
        f"the policy is led away from its own reward: {HACKED}",
      )
