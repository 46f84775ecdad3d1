"""DIR/metrics.jsonl and DIR/result.json -> DIR/curve.png: `python -m grpo_jax.reports.plots DIR`."""

import json
import pathlib
import sys

import matplotlib.figure
import numpy as np

from grpo_jax.reports import jsonl

Rows = list[dict[str, float | None]]

# Panels: title, the metrics in it (name, label), and whether its range starts at 0 and ends at 1.
PANELS = (
  ("reward", (("reward/mean", "mean"), ("reward/std", "std")), False),
  ("loss", (("loss", "loss"),), False),
  (
    "accuracy on the test split",
    (("eval/accuracy", "greedy"), ("eval/pass@8", "pass@8"), ("eval/maj@8", "maj@8")),
    True,
  ),
  ("KL to the reference", (("kl", "KL"),), False),
  ("entropy of the policy (nats)", (("entropy", "entropy"),), False),
  ("completion length (tokens)", (("length/mean", "mean"), ("length/min", "min"), ("length/max", "max")), False),
  ("shares", (("truncated", "truncated"), ("zero_variance_groups", "groups without variance")), True),
)
COLORS = ("#3b6fb6", "#d1793a", "#4f9a5b")  # told apart by colour-blind eyes, too


def series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Steps and values of one metric, without what was not measured or not finite."""
  pairs = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
  steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
  return steps, values


def smooth(values: np.ndarray, window: int) -> np.ndarray:
  """Centred moving average; near the ends over what there is. values: [N] -> [N]."""
  kernel = np.ones(window)
  return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def draw(workdir: str) -> pathlib.Path | None:
  """Draws a panel for each group of metrics that the run has; without any, draws nothing."""
  folder = pathlib.Path(workdir)
  rows = jsonl.read(folder / "metrics.jsonl")
  panels = [panel for panel in PANELS if any(len(series(rows, name)[0]) for name, _ in panel[1])]
  if not panels:
    return None
  columns = min(3, len(panels))
  lines = -(-len(panels) // columns)
  figure = matplotlib.figure.Figure(figsize=(4.6 * columns, 3.1 * lines + 0.4), dpi=120, layout="constrained")
  figure.suptitle(headline(folder), fontsize=10, x=0.01, ha="left")
  for i, (title, names, unit) in enumerate(panels):
    axes = figure.add_subplot(lines, columns, i + 1)
    _panel(axes, rows, title, names, unit)
    if i >= len(panels) - columns:
      axes.set_xlabel("step")
  out = folder / "curve.png"
  figure.savefig(out)
  return out


def headline(folder: pathlib.Path) -> str:
  """The folder's name and, where the run ended, what result.json says of it."""
  path = folder / "result.json"
  name = folder.resolve().name
  if not path.exists():
    return name
  result = json.loads(path.read_text(encoding="utf-8"))
  before, after = result.get("accuracy_before"), result.get("accuracy_after")
  if before is None or after is None:
    return name
  minutes = f", {result['wall_s'] / 60:.1f} min" if result.get("wall_s") else ""
  return f"{name}: accuracy {before:.1%} before, {after:.1%} after {result.get('steps', '?')} steps{minutes}"


def _panel(axes, rows: Rows, title: str, names: tuple, unit: bool) -> None:
  drawn = [(*series(rows, name), label, color) for (name, label), color in zip(names, COLORS)]
  drawn = [line for line in drawn if len(line[0])]
  for steps, values, label, color in drawn:
    window = max(1, len(steps) // 20)
    if window > 1:
      axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(
      steps,
      smooth(values, window),
      color=color,
      linewidth=1.6,
      label=label,
      markersize=4,
      marker="o" if len(steps) < 12 else "",
    )
  axes.set_title(title, fontsize=9, loc="left")
  axes.tick_params(labelsize=8)
  axes.grid(alpha=0.25, linewidth=0.6)
  axes.spines[["top", "right"]].set_visible(False)
  if unit:
    axes.set_ylim(-0.02, 1.02)
  if len(names) > 1:
    axes.legend(fontsize=8, frameon=False)


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("usage: python -m grpo_jax.reports.plots DIR")
  print(draw(sys.argv[1]) or f"{sys.argv[1]}: no metrics.jsonl with anything to draw")
