"""Says which metrics of a run are drawn together, for its picture and its page."""

import re
from typing import NamedTuple

import numpy as np

from grpo_jax.reports import jsonl

Lines = list[jsonl.Metrics]


class Panel(NamedTuple):
  """One diagram of the picture, with some metrics."""

  title: str
  metrics: tuple[tuple[str, str], ...]  # name, label
  share: bool  # the values lie between 0 and 1


# `drawn` adds `sampled_accuracies`
ACCURACY = Panel("accuracy on the test split", (("eval/accuracy", "greedy"),), True)
HELD_OUT = (
  ("eval/pair_accuracy", "pairs"),
  ("eval/step_accuracy", "steps"),
  ("eval/rule_accuracy", "steps, by the rule"),
)
SHARES = (
  ("truncated", "truncated"),
  ("zero_variance", "groups without variance"),
  ("teacher/taught", "with a teacher"),
  ("clip_low", "clipped below"),
  ("clip_high", "clipped above"),
)
SPEEDS = (
  ("tokens_per_s/sample", "sampling"),
  ("tokens_per_s/learn", "learning"),
  ("tokens_per_s/step", "whole step"),
)
# What never exceeds this in a whole run is not drawn. At mu = 1 the loss of a policy gradient is 0
# up to rounding, whatever is learned, and nothing is clipped. Objectives that learn from
# every group report that none lacks variance.
LEAST = {"loss": 1e-5, "clip_low": 0.0, "clip_high": 0.0, "zero_variance": 0.0}
PANELS = (
  ACCURACY,
  Panel("reward", (("reward/mean", "mean"), ("reward/std", "std")), False),
  Panel("loss", (("loss", "loss"),), False),
  Panel("reward model, held-out data", HELD_OUT, True),
  Panel("KL to the reference", (("kl", "KL"),), False),
  Panel("divergence from the teacher (nats)", (("divergence", "divergence"),), False),
  Panel(
    "gradient norm before clipping",
    (("grad_norm", "model"), ("critic_grad_norm", "critic")),
    False,
  ),
  Panel("learning rate", (("lr", "rate"),), False),
  Panel("entropy of the policy (nats)", (("entropy", "entropy"),), False),
  Panel(
    "completion length (tokens)",
    (("length/mean", "mean"), ("length/min", "min"), ("length/max", "max")),
    False,
  ),
  Panel("shares", SHARES, True),
  Panel("completion tokens a second", SPEEDS, False),
)
MOST_LABELS = 24  # for accuracies by samples


def sampled_accuracies(lines: Lines) -> tuple[tuple[str, str], ...]:
  """Returns (name, label) of every measured pass@k and maj@k, with k in ascending order."""
  names = dict.fromkeys(name for line in lines for name in line)
  matches = filter(None, (re.fullmatch(r"eval/((pass|maj)@(\d{1,9}))", name) for name in names))
  ordered = sorted(matches, key=lambda match: (match[2] == "maj", int(match[3])))
  return tuple((match[0], match[1]) for match in ordered[:MOST_LABELS])


def drawn(lines: Lines) -> list[Panel]:
  """Returns the panels that have something to draw."""
  accuracy = ACCURACY._replace(metrics=ACCURACY.metrics + sampled_accuracies(lines))
  every = [accuracy if panel is ACCURACY else panel for panel in PANELS]
  return [panel for panel in every if any(is_drawn(lines, name) for name, _ in panel.metrics)]


def is_drawn(lines: Lines, name: str) -> bool:
  """Returns whether the run has this metric, and has it above its LEAST."""
  values = series(lines, name)[1]
  return bool(values.size) and (name not in LEAST or bool(np.abs(values).max() > LEAST[name]))


def series(lines: Lines, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the steps and finite values of one metric."""
  pairs = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
  steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
  return steps, values
