"""Warns of a run that learns nothing, or something else than it should."""

import collections
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from grpo_jax.run.writer import Number, Writer

STEPS = 10  # in a row, before there is a warning
NEARLY_ALL = 0.95
# From few truncated completions to many: the policy has learned not to end. That happens within a
# few steps, so the warning comes after SOON of them.
FEW, MANY, SOON = 0.1, 0.5, 3
FALLEN = 0.5  # of the reward of the first steps

CHANCE = 0.5  # agreement of a reward that knows nothing
# Standard errors between the means of STEPS steps that count as a rise or fall. The steps with the
# highest mean are compared, so 3 would often be chance (in 16 of 40 simulated runs of 300 steps
# with a constant rule; 5 in none).
CERTAIN = 5.0
# The same for the policy's reward, which is compared with that of its first steps alone, and has to
# fall to FALLEN of it besides: chance does not make a mean of 0.0004 more than 0.
FALL = 3.0

HACKED = (
  "look at samples.jsonl: rewards of steps that are compared one by one pay for having few of them "
  "(objective.advantage=step_returns does not), and a smaller learner.lr or a KL (objective.beta) "
  "holds the policy"
)
PARTED = (
  "sort samples.html by disagreement to see what it takes for right; a KL (objective.beta) or a "
  "smaller learner.lr keeps the policy near the samples that the reward model learned from, "
  "loop='iterative' goes on teaching it the policy's own, and a weight of the rule in "
  "rewards.functions has a say against it"
)


Metrics = Mapping[str, Number | None]


class Steps:
  """Keeps the rewards of a model and of the rule, and their agreement, of the last STEPS steps."""

  def __init__(self) -> None:
    self.learned, self.rule, self.agreement = (
      collections.deque[float](maxlen=STEPS) for _ in range(3)
    )
    # learned and rule of the steps in which the rule's mean was highest
    self.best: tuple[list[float], list[float]] | None = None

  def add(self, learned: float, rule: float, agreement: float) -> None:
    """Adds the means of a step and its agreement, without NaN."""
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
  """Looks at the metrics of every step, and warns once if many steps show the same trouble."""

  def __init__(self, limits: str, rule: str = ""):
    """Begins before the first step.

    Args:
      limits: that cut off completions, for the messages; see `limits_of`.
      rule: the reward with which reward models are compared; empty if there is none.
    """
    self.limits, self.rule = limits, rule
    self.compared: dict[str, Steps] = {}  # by the name of the reward model
    # steps in a row: without an advantage, nearly all truncated, many truncated
    self.flat, self.cut_off, self.many = 0, 0, 0
    self.least_cut_off = 1.0  # the smallest share of truncated completions so far
    self.rewards: collections.deque[float] = collections.deque(maxlen=STEPS)  # of the last steps
    self.first_rewards: list[float] = []  # of the first STEPS steps

  def __call__(self, metrics: Metrics, writer: Writer) -> None:
    """Looks at the metrics of one step; `writer` prints the warnings."""
    truncated, mean = _number(metrics, "truncated", 0.0), _number(metrics, "reward/mean")
    self._advantages(_number(metrics, "zero_variance", 0.0), mean, writer)
    self._truncated(truncated, mean, writer)
    self._reward(mean, writer)
    for name in metrics:
      if name.startswith("agreement/"):
        self.compared.setdefault(name.removeprefix("agreement/"), Steps())
    for name, steps in self.compared.items():
      self._parted(name, steps, metrics, writer)

  def _advantages(self, flat: float, mean: float, writer: Writer) -> None:
    """Warns if all groups were flat for STEPS steps; `flat` is the share of such groups."""
    self.flat = self.flat + 1 if flat >= 1.0 else 0
    if self.flat == STEPS:
      writer.warn(
        "zero_variance",
        f"in {STEPS} steps no group had an advantage, so nothing is learned (reward/mean is "
        f"{mean:.3g}): look at what was sampled in samples.jsonl; where all fail, use easier "
        "problems, a better start (init_from) or a reward with values in between; where all "
        "succeed, harder problems; a larger sampler.group helps in both",
      )

  def _truncated(self, truncated: float, mean: float, writer: Writer) -> None:
    """Warns if nearly all completions are truncated, or many more than before."""
    self.cut_off = self.cut_off + 1 if truncated >= NEARLY_ALL else 0
    self.least_cut_off = min(self.least_cut_off, truncated)
    self.many = self.many + 1 if truncated >= MANY and self.least_cut_off <= FEW else 0
    if self.cut_off == STEPS:
      writer.warn(
        "truncated",
        f"in {STEPS} steps at least {NEARLY_ALL:.0%} of the completions were cut off at "
        f"{self.limits}: raise it, check that the model ends its answers (sampler.stop, "
        "data.chat), or reward shorter ones (length.overlong)",
      )
    if self.many == SOON:
      writer.warn(
        "more truncated",
        f"{truncated:.0%} of the completions are now cut off at {self.limits}, where it was "
        f"{self.least_cut_off:.0%} before, and reward/mean is {mean:.3g}: {HACKED}",
      )

  def _reward(self, mean: float, writer: Writer) -> None:
    """Warns if the policy's own reward has fallen to half of that of the first steps."""
    if mean != mean:  # NaN: there was none
      return
    self.rewards.append(mean)
    if len(self.rewards) < STEPS:
      return
    self.first_rewards = self.first_rewards or list(self.rewards)
    first, now = statistics.fmean(self.first_rewards), statistics.fmean(self.rewards)
    if 0 < first and now < FALLEN * first and rise(self.first_rewards, self.rewards) < -FALL:
      writer.warn(
        "reward",
        f"reward/mean was {first:.3g} in the first {STEPS} steps since this start and is {now:.3g} "
        f"in the last {STEPS}, so the policy is led away from its own reward: {HACKED}",
      )

  def _parted(self, name: str, steps: Steps, metrics: Metrics, writer: Writer) -> None:
    """Adds a step of a reward model, and warns if it has parted from the rule."""
    names = (f"reward/{name}", f"reward/{self.rule}", f"agreement/{name}")
    steps.add(*(_number(metrics, metric) for metric in names))
    if text := parted(name, self.rule, steps):
      writer.warn(
        f"parted {name}", f"{text}: the policy is rewarded for what the rule does not see; {PARTED}"
      )


def limits_of(max_length: int, turn_length: int = 0, turns: int = 0) -> str:
  """Returns the settings that cut off completions, or with `turns` above 0 episodes."""
  limits = {
    "sampler.max_length": max_length,
    "environment.turn_length": turn_length,
    "environment.turns": turns,
  }
  *most, last = [f"{name}={value}" for name, value in limits.items() if value]
  return " or ".join(filter(None, [", ".join(most), last]))


def parted(name: str, rule: str, steps: Steps) -> str:
  """Returns how a learned reward and the rule have parted, or "".

  One has risen and the other fallen since the steps in which the rule gave most, or they disagree.
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
      f"fewer pairs in the order of {rule!r} than chance would (reward/{name} is {means[0]}, "
      f"reward/{rule} {means[1]})"
    )
  return ""


def rise(before: Sequence[float], now: Sequence[float]) -> float:
  """Returns the rise of the mean over that of earlier steps, in standard errors (Welch's t)."""
  difference = float(np.mean(now) - np.mean(before))
  error = math.sqrt(np.var(before, ddof=1) / len(before) + np.var(now, ddof=1) / len(now))
  if error:
    return difference / error
  return math.copysign(math.inf, difference) if difference else 0.0


def _from_to(before: Sequence[float], now: Sequence[float]) -> str:
  return f"from {statistics.fmean(before):.3g} to {statistics.fmean(now):.3g}"


def _number(metrics: Metrics, name: str, default: float = math.nan) -> float:
  """Returns a metric, or `default` if it is missing; NaN for the null of metrics.jsonl."""
  value = metrics.get(name, default)
  return math.nan if value is None else float(value)
