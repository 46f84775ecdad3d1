"""Curves of several runs with their spread, as SVG to stand in a page."""

import io
from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.figure
import numpy as np

Lines = Sequence[tuple[np.ndarray, np.ndarray]]  # (x [N], y [N]) of each run of one arm

COLORS = ("#3b6fb6", "#d1793a", "#4f9a5b", "#8a5fb0", "#5b5b5b", "#c0508a", "#9a8a2f")
POINTS = 60


def spread(lines: Lines) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """x, and at each x the mean, the least and the greatest y of the runs, as far as all of them go; [POINTS] each."""
  x = np.linspace(max(run[0][0] for run in lines), min(run[0][-1] for run in lines), POINTS)
  y = np.stack([np.interp(x, *run) for run in lines])
  return x, y.mean(0), y.min(0), y.max(0)


def svg(panels: Sequence[tuple[str, Sequence[str]]], arms: Mapping[str, Lines], mark: float, labels: tuple) -> str:
  """A panel (title, names of arms) for each of `panels`: the mean of an arm's runs in a band from least to greatest.

  Args:
    arms: the runs of each arm; an arm that a panel names and that is not here is left out.
    mark: x of a line through all panels.
    labels: of x and of y.
  """
  panels = [(title, [name for name in names if arms.get(name)]) for title, names in panels]
  panels = [panel for panel in panels if panel[1]]
  columns = min(2, len(panels))
  lines = -(-len(panels) // columns)
  figure = matplotlib.figure.Figure(figsize=(5.4 * columns, 3.4 * lines), layout="constrained")
  first = None
  for i, (title, names) in enumerate(panels):
    first = axes = figure.add_subplot(lines, columns, i + 1, sharex=first, sharey=first)
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
