"""Warnings about a run that goes on and learns nothing, or something else than it should."""

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.run.writer import Writer

STEPS = 10  # in a row, before there is a warning
NEARLY_ALL = 0.95
# From hardly any completion cut off to so many, within a run: the policy has found that it need not
# end. It goes from one to the other in a few steps, so that it is told after fewer of them.
FEW, MANY, SOON = 0.1, 0.5, 3
FALLEN = 0.5  # of the reward that the first steps had

CHANCE = 0.5  # agreement of a reward that knows nothing
# Standard errors between the means of STEPS steps before one has risen or fallen: since the steps
# with the highest mean are looked for, 3 are often chance where the rule stays as it is (16 of 40
# simulated runs of 300 steps; at 5 none).
CERTAIN = 5.0

HACKED = (
  "look at samples.jsonl: rewards of steps that are compared one by one pay for having few of them "
  "(objective.advantage=step_returns does not), and a smaller learner.lr or a KL (objective.beta) "
  "holds the policy"
)
PARTED = (
  "sort samples.html by disagreement to see what it takes for right; a KL (objective.beta) or a "
  "smaller learner.lr "
  "keeps the policy near the samples that the reward model learned from, loop='iterative' goes on "
  "teaching it the "
  "policy's own, and a weight of the rule in rewards.functions has a say against it"
)


class Steps:
  """The last STEPS steps of which a learned reward, the rule's reward and their agreement are
  known.
  """

  def __init__(self):
    """Begins without any."""
    self.learned, self.rule, self.agreement = (
      collections.deque[float](maxlen=STEPS) for _ in range(3)
    )
    self.best: tuple[list[float], list[float]] | None = (
      None  # learned and rule, where the rule's mean was highest
    )

  def add(self, learned: float, rule: float, agreement: float) -> None:
    """Adds the means of a step, and its agreement; what is NaN is left out."""
    if not math.isnan(agreement):
      self.agreement.append(agreement)
    if math.isnan(learned) or math.isnan(rule):
      return
    self.learned.append(learned)
    self.rule.append(rule)
    if len(self.rule) == STEPS and (
      self.best is None or statistics.fmean(self.rule) > statistics.fmean(self.best[1])
    ):
      self.best = list(self.learned), list(self.rule)


class Watch:
  """Looks at the metrics of every step, and warns once when many steps in a row show the same
  trouble.
  """

  def __init__(self, max_length: int, rule: str = ""):
    """Begins before the first step.

    Args:
      max_length: `sampler.max_length`, for the message.
      rule: the name of the reward that says what is right, with which learned ones are compared;
        "": there is none.
    """
    self.max_length, self.rule = max_length, rule
    self.compared: dict[str, Steps] = {}  # by the name of the learned reward
    self.flat, self.cut_off, self.many = 0, 0, 0  # steps in a row
    self.least_cut_off = 1.0  # the smallest share so far
    self.rewards: collections.deque[float] = collections.deque(maxlen=STEPS)  # of the last steps
    self.first_reward: float | None = None  # mean of the first steps

  def __call__(self, numbers: Mapping[str, Any], writer: Writer) -> None:
    """Counts one step.

    Args:
      numbers: its metrics; those that a loop does not have are not looked at.
      writer: prints the warning.
    """
    truncated, mean = (
      float(numbers.get("truncated", 0.0)),
      float(numbers.get("reward/mean", float("nan"))),
    )
    self.flat = self.flat + 1 if float(numbers.get("zero_variance", 0.0)) >= 1.0 else 0
    self.cut_off = self.cut_off + 1 if truncated >= NEARLY_ALL else 0
    self.least_cut_off = min(self.least_cut_off, truncated)
    self.many = self.many + 1 if truncated >= MANY and self.least_cut_off <= FEW else 0
    if self.flat == STEPS:
      writer.warn(
        "zero_variance",
        f"in {STEPS} steps no group had an advantage, so nothing is learned (reward/mean is "
        f"{mean:.3g}): look at what "
        "was sampled in samples.jsonl; where all fail, use easier problems, a better start "
        "(init_from) or a reward of "
        "more values; where all succeed, harder problems; a larger sampler.group helps in both",
      )
    if self.cut_off == STEPS:
      writer.warn(
        "truncated",
        f"in {STEPS} steps at least {NEARLY_ALL:.0%} of the completions were cut off at "
        "sampler.max_length="
        f"{self.max_length}: raise it, check that the model ends its answers (sampler.stop, "
        "data.chat), or reward "
        "shorter ones (length.overlong)",
      )
    if self.many == SOON:
      writer.warn(
        "more truncated",
        f"{truncated:.0%} of the completions are now cut off at "
        f"sampler.max_length={self.max_length}, where it was "
        f"{self.least_cut_off:.0%} before, and reward/mean is {mean:.3g}: {HACKED}",
      )
    self._reward(mean, writer)
    for name in numbers:
      if name.startswith("agreement/"):
        self.compared.setdefault(name.removeprefix("agreement/"), Steps())
    for name, steps in self.compared.items():
      self._parted(name, steps, numbers, writer)

  def _reward(self, mean: float, writer: Writer) -> None:
    """Warns where the reward that the policy is trained on has fallen to half of what the first
    steps had.
    """
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
        f"reward/mean was {self.first_reward:.3g} in the first {STEPS} steps and is {now:.3g} in "
        f"the last {STEPS}, so "
        f"the policy is led away from its own reward: {HACKED}",
      )

  def _parted(self, name: str, steps: Steps, numbers: Mapping[str, Any], writer: Writer) -> None:
    """Counts a step of a learned reward, and warns where it has parted from the rule."""
    steps.add(
      *(
        _number(numbers, each)
        for each in (f"reward/{name}", f"reward/{self.rule}", f"agreement/{name}")
      )
    )
    if said := parted(name, self.rule, steps):
      writer.warn(
        f"parted {name}", f"{said}: the policy is rewarded for what the rule does not see; {PARTED}"
      )


def parted(name: str, rule: str, steps: Steps) -> str:
  """How a learned reward and the rule have parted: one has risen and the other fallen, or they
  disagree; or "".

  What has fallen is compared with the steps in which the rule gave most: before it fell it may have
  risen.
  """
  if (
    steps.best
    and rise(steps.best[0], steps.learned) > CERTAIN
    and rise(steps.best[1], steps.rule) < -CERTAIN
  ):
    return (
      f"reward/{name} has risen {_from_to(steps.best[0], steps.learned)}, and reward/{rule} fallen "
      f"{_from_to(steps.best[1], steps.rule)}, since the {STEPS} steps in which that was highest"
    )
  if len(steps.agreement) == STEPS and statistics.fmean(steps.agreement) < CHANCE:
    means = [f"{statistics.fmean(x):.3g}" if x else "unknown" for x in (steps.learned, steps.rule)]
    return (
      f"in {STEPS} steps agreement/{name} was {statistics.fmean(steps.agreement):.3g}: it put "
      "fewer pairs in the order "
      f"of {rule!r} than chance would (reward/{name} is {means[0]}, reward/{rule} {means[1]})"
    )
  return ""


def rise(before: Sequence[float], now: Sequence[float]) -> float:
  """By how many standard errors the mean of some steps is above that of earlier ones (Welch's t)."""
  difference = np.mean(now) - np.mean(before)
  error = math.sqrt(np.var(before, ddof=1) / len(before) + np.var(now, ddof=1) / len(now))
  return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


def _from_to(before: Sequence[float], now: Sequence[float]) -> str:
  return f"from {statistics.fmean(before):.3g} to {statistics.fmean(now):.3g}"


def _number(numbers: Mapping[str, Any], name: str) -> float:
  """A metric; NaN where it is not there, or is the null that metrics.jsonl has for NaN."""
  value = numbers.get(name)
  return math.nan if value is None else float(value)
