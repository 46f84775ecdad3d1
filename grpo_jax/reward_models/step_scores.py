"""How well the scores of a process reward model tell right steps from wrong ones."""

import numpy as np

from grpo_jax.reward_models import agreement


def step_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns how well scores `[N]` agree with labels `[N]` from 0 to 1 of the same N steps.

  A step is right where its label is above one half, and is said to be where its score is above 0.
  What needs right and wrong steps is left out where there are none of either.

    accuracy        mean of the next two: balanced, since most steps may be right
    accuracy_right  share of the right steps that are said to be right
    accuracy_wrong  share of the wrong steps that are said to be wrong
    agreement       share of all steps on which both say the same
    area            under the receiver's operating curve: how often a right step scores above a wrong one, ties by half
    brier           mean of (sigma(score) - label)^2: 0 is best, 0.25 says nothing of hard labels (Brier 1950)
    wrong           share of wrong steps
  """
  scores, right = np.asarray(scores, np.float64), np.asarray(labels) > 0.5
  said = scores > 0
  found = {
    "agreement": float((said == right).mean()),
    "brier": float(((0.5 * (1 + np.tanh(scores / 2)) - labels) ** 2).mean()),
    "wrong": float((~right).mean()),
  }
  if right.all() or not right.any():
    return found
  of_right, of_wrong = float(said[right].mean()), float(1 - said[~right].mean())
  return {
    "accuracy": (of_right + of_wrong) / 2,
    "accuracy_right": of_right,
    "accuracy_wrong": of_wrong,
    "area": agreement.area(scores, right),
  } | found
