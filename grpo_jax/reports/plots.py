"""Draws DIR/curve.png from a run's metrics: `python -m grpo_jax.reports.plots DIR`."""

import itertools
import sys

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from grpo_jax.errors import GrpoError
from grpo_jax.io import storage
from grpo_jax.reports import jsonl, panels
from grpo_jax.sandbox import model_folder

INLINE = 3  # the most labels that fit beside the title; more go into rows below it
ACROSS = 5  # labels in such a row
ROW_POINTS = 11.5  # the height of such a row
# Colour-blind readers can tell the first three apart.
COLORS = ("#3b6fb6", "#d1793a", "#4f9a5b", "#8a5fb0", "#5b5b5b", "#c0508a", "#9a8a2f")


def smooth(values: np.ndarray, window: int) -> np.ndarray:
  """Returns the centred moving average [N] of values [N], over fewer values near the ends."""
  kernel = np.ones(window)
  return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def draw(workdir: str) -> storage.Path | None:
  """Draws the panels of a run and returns the picture's path, or None without any metrics."""
  folder = storage.place(workdir)
  lines = jsonl.metrics(folder / "metrics.jsonl")
  drawn = panels.drawn(lines)
  if not drawn:
    return None
  across = min(4 if len(drawn) in (4, 7, 8) else 3, len(drawn))
  down = -(-len(drawn) // across)
  figure = matplotlib.figure.Figure(
    figsize=(4.6 * across, 3.1 * down + 0.4), dpi=120, layout="constrained"
  )
  figure.suptitle(
    headline(folder, lines[-1]["step"] or 0), fontsize=10, x=0.01, ha="left", parse_math=False
  )
  for i, panel in enumerate(drawn):
    axes = figure.add_subplot(down, across, i + 1)
    _draw_panel(axes, lines, panel)
    if i >= len(drawn) - across:
      axes.set_xlabel("step")
  out = folder / "curve.png"
  with storage.writing(out) as file:
    figure.savefig(file)
  return out


def headline(folder: storage.Path, last_step: float) -> str:
  """Returns the folder's name and, unless the run was resumed since, the summary of result.json."""
  name = storage.title(folder)
  try:
    result = model_folder.read_json(f"workdir={folder}", folder, "result.json") or {}
  except GrpoError as error:
    print(f"warning: {error}", file=sys.stderr, flush=True)
    result = {}
  result = {key: value for key, value in result.items() if jsonl.NUMBER.fits(value)}
  steps = result.get("steps", 0)
  for metric in ("accuracy", "pair_accuracy", "step_accuracy"):
    before, after = result.get(f"{metric}_before"), result.get(f"{metric}_after")
    if before is not None and after is not None and steps >= last_step:
      minutes = f", {result['wall_s'] / 60:.1f} min" if result.get("wall_s") else ""
      return (
        f"{name}: {metric.replace('_', ' ')} {before:.1%} before, {after:.1%} after {steps} "
        f"steps{minutes}"
      )
  return name


def _draw_panel(axes: matplotlib.axes.Axes, lines: panels.Lines, panel: panels.Panel) -> None:
  """Draws the metrics of a panel: values in a pale colour, moving averages in full colour."""
  for (name, label), color in zip(panel.metrics, itertools.cycle(COLORS)):
    if not panels.is_drawn(lines, name):
      continue
    steps, values = panels.series(lines, name)
    window = max(1, len(steps) // 20)
    if window > 1:
      axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    (line,) = axes.plot(steps, smooth(values, window), color=color, linewidth=1.6, label=label)
    if len(steps) < 12:
      line.set(marker="o", markersize=4)
  axes.tick_params(labelsize=8)
  axes.grid(alpha=0.25, linewidth=0.6)
  axes.spines[["top", "right"]].set_visible(False)
  if panel.share:
    axes.set_ylim(-0.02, 1.02)
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, min_n_ticks=1))
  labels = len(axes.get_legend_handles_labels()[1])
  rows = -(-labels // ACROSS) if labels > INLINE else 0
  axes.set_title(panel.title, fontsize=9, loc="left", pad=6 + ROW_POINTS * rows)
  if labels > 1:
    axes.legend(
      loc="lower right",
      bbox_to_anchor=(1.02, 1.0),  # above the panel: inside it there may be a line anywhere
      ncols=-(-labels // max(1, rows)),
      fontsize=7.5,
      frameon=False,
      borderaxespad=0,
      borderpad=0.2,
      handlelength=1,
      handletextpad=0.4,
      columnspacing=0.8,
    )


if __name__ == "__main__":
  nothing = "no metrics.jsonl with anything to draw"
  jsonl.folder_command("grpo_jax.reports.plots", __doc__, draw, nothing)
