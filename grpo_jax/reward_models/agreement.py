"""Compares learned rewards with a rule, and rewards with the lengths of completions.

A policy that is trained on a reward model's scores finds what the model wrongly takes for right
(Gao et al., arXiv 2210.10760). It shows when the two are compared on the policy's own samples. Only
differences within a group mean anything: the advantage sees no others, and the scores of a
Bradley-Terry model have no common zero.

NaN stands for a completion without a reward, which is left out of every comparison. If nothing is
left to compare, the result is NaN.
"""

import numpy as np


def area(scores: np.ndarray, right: np.ndarray) -> float:
  """Returns the area under the ROC curve of scores `[N]`, where `right` is `[N]` bool.

  It is how often a right one scores above a wrong one, ties half; NaN if either kind is missing.
  """
  known = ~np.isnan(scores)
  above, below = scores[known & right], np.sort(scores[known & ~right])
  if not len(above) or not len(below):
    return float("nan")
  ranks = (np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")) / 2
  return float((ranks / len(below)).mean())


def pairs_in_order(learned: np.ndarray, rule: np.ndarray) -> float:
  """Returns the share of pairs in a group that the learned reward orders like the rule.

  Pairs that the rule ties are left out, a tie of the learned reward counts half. Both are `[P, G]`.
  """
  gaps = _differences(learned)[(_differences(rule) > 0) & ~np.isnan(_differences(learned))]
  return float(((gaps > 0) + 0.5 * (gaps == 0)).mean()) if gaps.size else float("nan")


def disagreement(learned: np.ndarray, rule: np.ndarray) -> np.ndarray:
  """Returns how much higher each completion ranks by the learned reward than by the rule, `[P, G]`.

  A rank, from 0 to 1, is the share of the others in the group with less reward, ties half; so 1 is
  the best by the learned reward alone, and -1 the best by the rule alone. Both rewards are
  `[P, G]`; NaN where one is missing.
  """
  both = ~np.isnan(learned) & ~np.isnan(rule)
  return _ranks(np.where(both, learned, np.nan)) - _ranks(np.where(both, rule, np.nan))


def correlation_in_groups(x: np.ndarray, y: np.ndarray) -> float:
  """Returns Pearson's correlation of x and y `[P, G]`, each minus its mean over the group."""
  known = ~np.isnan(x) & ~np.isnan(y)
  a, b = _centred(np.where(known, x, np.nan)), _centred(np.where(known, y, np.nan))
  size = np.sqrt((a**2).sum() * (b**2).sum())
  return float((a * b).sum() / size) if size > 0 else float("nan")


def _differences(x: np.ndarray) -> np.ndarray:
  """Returns the differences of all pairs in a group, `[P, G, G]` of `[P, G]`."""
  x = np.asarray(x, np.float64)
  return x[:, :, None] - x[:, None, :]


def _ranks(x: np.ndarray) -> np.ndarray:
  """Returns the share of the others in its group below each, `[P, G]`; NaN if x is, or alone."""
  gaps = _differences(x)
  known = ~np.isnan(gaps)
  others = known.sum(axis=2) - 1
  above = ((gaps > 0) + 0.5 * ((gaps == 0) & known)).sum(
    axis=2
  ) - 0.5  # without the tie with itself
  return np.where(others > 0, above / np.maximum(others, 1), np.nan)


def _centred(x: np.ndarray) -> np.ndarray:
  """Returns x `[P, G]` minus its group's mean; exactly 0 for NaN and in groups of one value."""
  x, known = np.asarray(x, np.float64), ~np.isnan(x)
  mean = np.where(known, x, 0.0).sum(axis=1, keepdims=True) / np.maximum(
    known.sum(axis=1, keepdims=True), 1
  )
  least = np.where(known, x, np.inf).min(axis=1, keepdims=True)
  varied = np.where(known, x, -np.inf).max(axis=1, keepdims=True) > least
  return np.where(known & varied, x - mean, 0.0)
