"""Warnings about a run that goes on and learns nothing."""

from collections.abc import Mapping
from typing import Any

from grpo_jax import metrics

STEPS = 10  # in a row, before there is a warning
NEARLY_ALL = 0.95


class Watch:
  """Looks at the metrics of every step, and warns once when many steps in a row show the same trouble."""

  def __init__(self, max_length: int):
    """Takes `sampler.max_length`, for the message."""
    self.max_length = max_length
    self.flat, self.cut_off = 0, 0  # steps in a row

  def __call__(self, numbers: Mapping[str, Any], writer: metrics.Writer) -> None:
    """Counts one step.

    Args:
      numbers: its metrics; those that a loop does not have are not looked at.
      writer: prints the warning.
    """
    self.flat = self.flat + 1 if float(numbers.get("zero_variance", 0.0)) >= 1.0 else 0
    self.cut_off = self.cut_off + 1 if float(numbers.get("truncated", 0.0)) >= NEARLY_ALL else 0
    if self.flat == STEPS:
      mean = float(numbers.get("reward/mean", float("nan")))
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
