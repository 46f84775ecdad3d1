"""Whether a learned reward says what a rule says, and what goes with the length of a completion.

A policy that is trained on a reward model's scores finds what the model takes for right and is not
(Gao et al., arXiv 2210.10760). It shows where the two are compared on the policy's own samples.
Only differences within a group mean
anything: the advantage sees no others, and a Bradley-Terry model's scores have no zero that all
prompts share.

NaN stands for what was given no reward, and takes part in nothing. Where nothing is left to
compare, so is the result.
"""

import numpy as np


def area(scores: np.ndarray, right: np.ndarray) -> float:
  """Returns the area under the receiver's operating curve of scores `[N]`, where `right` is `[N]`
  bool.

  It is how often a right one scores above a wrong one, ties by half; NaN where there are none of
  either.
  """
  known = ~np.isnan(scores)
  above, below = scores[known & right], np.sort(scores[known & ~right])
  if not len(above) or not len(below):
    return float("nan")
  ranks = (np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")) / 2
  return float((ranks / len(below)).mean())


def pairs_in_order(learned: np.ndarray, rule: np.ndarray) -> float:
  """Returns the share of pairs of a group, of different rewards by the rule, that the learned
  reward orders alike.

  A tie of the learned reward counts half. Both are `[P, G]`.
  """
  apart = _differences(learned)[(_differences(rule) > 0) & ~np.isnan(_differences(learned))]
  return float(((apart > 0) + 0.5 * (apart == 0)).mean()) if apart.size else float("nan")


def disagreement(learned: np.ndarray, rule: np.ndarray) -> np.ndarray:
  """Returns how much higher each completion ranks in its group by the learned reward than by the
  rule, `[P, G]`.

  Its rank, from 0 to 1, is the share of the others that have less reward, ties by half; so 1 is the
  best of the group by the learned reward alone, and -1 the best by the rule alone. Both are `[P,
  G]`; NaN where one gave no reward.
  """
  both = ~np.isnan(learned) & ~np.isnan(rule)
  return _ranks(np.where(both, learned, np.nan)) - _ranks(np.where(both, rule, np.nan))


def correlation_in_groups(x: np.ndarray, y: np.ndarray) -> float:
  """Returns Pearson's correlation of x and y `[P, G]`, each less its mean over the group."""
  known = ~np.isnan(x) & ~np.isnan(y)
  a, b = (_centred(np.where(known, each, np.nan)) for each in (x, y))
  size = np.sqrt((a**2).sum() * (b**2).sum())
  return float((a * b).sum() / size) if size > 0 else float("nan")


def _differences(x: np.ndarray) -> np.ndarray:
  """Each less each other of its group, `[P, G, G]` of `[P, G]`."""
  x = np.asarray(x, np.float64)
  return x[:, :, None] - x[:, None, :]


def _ranks(x: np.ndarray) -> np.ndarray:
  """The share of the others of its group that each is above, `[P, G]`; NaN where x is or where
  there are no others.
  """
  apart = _differences(x)
  known = ~np.isnan(apart)
  others = known.sum(axis=2) - 1
  above = ((apart > 0) + 0.5 * ((apart == 0) & known)).sum(axis=2) - 0.5  # a tie with itself
  return np.where(others > 0, above / np.maximum(others, 1), np.nan)


def _centred(x: np.ndarray) -> np.ndarray:
  """x `[P, G]` less the mean of its group, without what is NaN; 0 there, and in groups of one
  value, exactly.
  """
  x, known = np.asarray(x, np.float64), ~np.isnan(x)
  mean = np.where(known, x, 0.0).sum(axis=1, keepdims=True) / np.maximum(
    known.sum(axis=1, keepdims=True), 1
  )
  least = np.where(known, x, np.inf).min(axis=1, keepdims=True)
  varied = np.where(known, x, -np.inf).max(axis=1, keepdims=True) > least
  return np.where(known & varied, x - mean, 0.0)
