"""Measures how well the scores of a process reward model tell right steps from wrong ones."""

import numpy as np

from grpo_jax.reward_models import agreement


def step_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns how well scores `[N]` of steps agree with their labels `[N]` from 0 to 1.

  A step is right if its label is above one half, and is called right if its score is above 0.
  Metrics that need both right and wrong steps are left out if one kind is missing.

    accuracy        mean of the next two: balanced, since most steps may be right
    accuracy_right  share of the right steps that are called right
    accuracy_wrong  share of the wrong steps that are called wrong
    agreement       share of all steps that are called what they are
    area            under the ROC curve: how often a right step scores above a wrong one, ties half
    brier           mean of (sigma(score) - label)^2: 0 is best, 0.25 is chance (Brier 1950)
    wrong           share of wrong steps
  """
  scores, right = np.asarray(scores, np.float64), np.asarray(labels) > 0.5
  called_right = scores > 0
  metrics = {
    "agreement": float((called_right == right).mean()),
    "brier": float(((0.5 * (1 + np.tanh(scores / 2)) - labels) ** 2).mean()),
    "wrong": float((~right).mean()),
  }
  if right.all() or not right.any():
    return metrics
  of_right = float(called_right[right].mean())
  of_wrong = float(1 - called_right[~right].mean())
  return {
    "accuracy": (of_right + of_wrong) / 2,
    "accuracy_right": of_right,
    "accuracy_wrong": of_wrong,
    "area": agreement.area(scores, right),
  } | metrics
