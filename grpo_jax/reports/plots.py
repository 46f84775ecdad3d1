"""Draws DIR/curve.png from a run's metrics: `python -m grpo_jax.reports.plots DIR`."""

import itertools
import re
import sys
from typing import NamedTuple

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from grpo_jax.errors import GrpoError
from grpo_jax.io import storage
from grpo_jax.reports import jsonl
from grpo_jax.sandbox import model_folder

Lines = list[jsonl.Metrics]


class Panel(NamedTuple):
  """One diagram of the picture, with some metrics."""

  title: str
  metrics: tuple[tuple[str, str], ...]  # name, label
  share: bool  # the values lie between 0 and 1


# `panels` adds `sampled_accuracies`
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
# up to rounding, whatever is learned, and nothing is clipped. Objectives without a clip report 0 as
# well, and those that learn from every group report that none lacks variance.
LEAST = {"loss": 1e-5, "clip_low": 0.0, "clip_high": 0.0, "zero_variance": 0.0}
PANELS = (
  ACCURACY,
  Panel("reward", (("reward/mean", "mean"), ("reward/std", "std")), False),
  Panel("loss", (("loss", "loss"),), False),
  Panel("reward model, held-out data", HELD_OUT, True),
  Panel("KL to the reference", (("kl", "KL"),), False),
  Panel("divergence from the teacher (nats)", (("divergence", "divergence"),), False),
  Panel("gradient norm", (("grad_norm", "before clipping"),), False),
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
INLINE = 3  # the most labels that fit beside the title; more go into rows below it
ACROSS = 5  # labels in such a row
ROW_POINTS = 11.5  # the height of such a row
MOST_LABELS = 24  # for accuracies by samples
# Colour-blind readers can tell the first three apart.
COLORS = ("#3b6fb6", "#d1793a", "#4f9a5b", "#8a5fb0", "#5b5b5b", "#c0508a", "#9a8a2f")


def sampled_accuracies(lines: Lines) -> tuple[tuple[str, str], ...]:
  """Returns (name, label) of every measured pass@k and maj@k, with k in ascending order."""
  names = dict.fromkeys(name for line in lines for name in line)
  matches = filter(None, (re.fullmatch(r"eval/((pass|maj)@(\d{1,9}))", name) for name in names))
  ordered = sorted(matches, key=lambda match: (match[2] == "maj", int(match[3])))
  return tuple((match[0], match[1]) for match in ordered[:MOST_LABELS])


def panels(lines: Lines) -> list[Panel]:
  """Returns the panels that have something to draw."""
  accuracy = ACCURACY._replace(metrics=ACCURACY.metrics + sampled_accuracies(lines))
  every = [accuracy if panel is ACCURACY else panel for panel in PANELS]
  return [panel for panel in every if any(_is_drawn(lines, name) for name, _ in panel.metrics)]


def _is_drawn(lines: Lines, name: str) -> bool:
  """Returns whether the run has this metric, and has it above its LEAST."""
  values = series(lines, name)[1]
  return bool(values.size) and (name not in LEAST or bool(np.abs(values).max() > LEAST[name]))


def series(lines: Lines, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the steps and finite values of one metric."""
  pairs = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
  steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
  return steps, values


def smooth(values: np.ndarray, window: int) -> np.ndarray:
  """Returns the centred moving average [N] of values [N], over fewer values near the ends."""
  kernel = np.ones(window)
  return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def draw(workdir: str) -> storage.Path | None:
  """Draws the panels of a run and returns the picture's path, or None without any metrics."""
  folder = storage.place(workdir)
  lines = jsonl.metrics(folder / "metrics.jsonl")
  drawn = panels(lines)
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


def _draw_panel(axes: matplotlib.axes.Axes, lines: Lines, panel: Panel) -> None:
  """Draws the metrics of a panel: values in a pale colour, moving averages in full colour."""
  for (name, label), color in zip(panel.metrics, itertools.cycle(COLORS)):
    if not _is_drawn(lines, name):
      continue
    steps, values = series(lines, name)
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
  run_folder = jsonl.folder_argument("grpo_jax.reports.plots", __doc__)
  print(draw(run_folder) or f"{run_folder}: no metrics.jsonl with anything to draw")
