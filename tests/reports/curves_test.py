"""Curves of several runs with their spread."""

import numpy as np

from grpo_jax.reports import curves

RUNS = [
  (np.array([0.0, 10.0]), np.array([0.0, 1.0])),
  (np.array([2.0, 4.0, 12.0]), np.array([1.0, 1.0, 3.0])),
]


def test_the_spread_is_of_where_all_runs_have_points():
  x, mean, low, high = curves.spread(RUNS)
  assert (x[0], x[-1], len(x)) == (2.0, 10.0, curves.POINTS)
  np.testing.assert_allclose((low[0], mean[0], high[0]), (0.2, 0.6, 1.0))
  np.testing.assert_allclose((low[-1], mean[-1], high[-1]), (1.0, 1.75, 2.5))


def test_arms_without_runs_are_left_out():
  panels = [("both", ["grpo", "ppo"]), ("none", ["ppo"])]
  text = curves.svg(panels, {"grpo": RUNS, "ppo": []}, 3.0, ("step", "accuracy"))
  assert text.startswith("<svg") and "grpo (2)" in text and "both" in text
  assert "ppo" not in text and "none</" not in text
  assert text == curves.svg(panels, {"grpo": RUNS}, 3.0, ("step", "accuracy"))  # same bytes again
