"""Draws curves of several runs with their spread, as SVG inside a page."""

import io
from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.figure
import numpy as np

Curves = Sequence[tuple[np.ndarray, np.ndarray]]  # (x [N], y [N]) of each run of one arm

COLORS = ("#3b6fb6", "#d1793a", "#4f9a5b", "#8a5fb0", "#5b5b5b", "#c0508a", "#9a8a2f")
POINTS = 60  # at which the spread of a curve is computed


def spread(runs: Curves) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns x, where all runs have points, and the mean, least and greatest y; [POINTS] each."""
  x = np.linspace(max(run[0][0] for run in runs), min(run[0][-1] for run in runs), POINTS)
  y = np.stack([np.interp(x, *run) for run in runs])
  return x, y.mean(0), y.min(0), y.max(0)


def svg(
  panels: Sequence[tuple[str, Sequence[str]]],
  arms: Mapping[str, Curves],
  mark: float,
  labels: tuple[str, str],
) -> str:
  """Returns an `<svg>` with the mean of each arm's runs in a band from the least to the greatest.

  Args:
    panels: (title, names of arms) of each panel; arms without runs are left out.
    arms: the runs of each arm.
    mark: the x of a vertical line in all panels.
    labels: the labels of x and of y.
  """
  panels = [(title, [name for name in names if arms.get(name)]) for title, names in panels]
  panels = [panel for panel in panels if panel[1]]
  across = min(2, len(panels))
  down = -(-len(panels) // across)
  figure = matplotlib.figure.Figure(figsize=(5.4 * across, 3.4 * down), layout="constrained")
  first = None
  for i, (title, names) in enumerate(panels):
    first = axes = figure.add_subplot(down, across, i + 1, sharex=first, sharey=first)
    for name, color in zip(names, COLORS * len(names)):
      x, mean, low, high = spread(arms[name])
      axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
      axes.plot(x, mean, color=color, linewidth=1.6, label=f"{name} ({len(arms[name])})")
    axes.axvline(mark, color="#69707d", linewidth=0.8, linestyle=":")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(labels[0], fontsize=8)
    axes.set_ylabel(labels[1], fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
  out = io.StringIO()
  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):
    figure.savefig(out, format="svg", metadata={"Date": None})
  text = out.getvalue()
  return text[text.index("<svg") :]
