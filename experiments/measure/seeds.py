"""Draws runs of several seeds side by side: what they solve, over their steps.

    python -m experiments.measure.seeds --out=runs/turns.png \\
      runs/guess_0 runs/guess_1 runs/guess_2 runs/calculator_0 runs/calculator_1

The name of a folder is a task and a seed; there is a panel for each task, with a colour for each
seed. Lines are the mean reward of all samples of a step, as a moving average (a dash where there is
but one step). Dots are the greedy accuracy on the test split.
"""

import functools
import itertools
import pathlib

from absl import app, flags, logging

from experiments import arguments, report
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.reports import jsonl, panels

WINDOW = 15  # a moving average is over a fifteenth of the steps


def tasks(folders: list[str]) -> dict[str, list[tuple[str, str]]]:
  """Returns the (seed, folder) of every task, from folders named TASK_SEED."""
  found: dict[str, list[tuple[str, str]]] = {}
  for folder in folders:
    task, _, seed = pathlib.PurePath(folder).name.rpartition("_")
    if not (task and seed.isdigit()):
      raise SettingError(f"DIR={folder!r}: its name is no TASK_SEED, such as runs/guess_0")
    found.setdefault(task, []).append((seed, folder))
  return found


def draw(folders: list[str], out: storage.Path) -> None:
  """Draws the runs of some folders into a PNG file."""
  arguments.draw_to_files()
  try:
    import matplotlib.figure

    from grpo_jax.reports import plots
  except ImportError as error:
    raise SettingError("a picture needs matplotlib: pip install matplotlib") from error
  of_task = tasks(folders)
  figure = matplotlib.figure.Figure(
    figsize=(4.8 * len(of_task), 3.4), dpi=120, layout="constrained"
  )
  axes = figure.subplots(1, len(of_task), squeeze=False, sharey=True)[0]
  for panel, (task, runs) in zip(axes, of_task.items()):
    for (seed, folder), color in zip(runs, itertools.cycle(plots.COLORS)):
      lines = jsonl.metrics(storage.place(folder) / "metrics.jsonl")
      steps, rewards = panels.series(lines, "reward/mean")
      if not len(steps):
        raise SettingError(f"{folder}: its metrics.jsonl has no reward/mean, the line of a run")
      window = max(1, len(steps) // WINDOW)
      marker = "" if len(steps) > 1 else "_"  # a line needs two points
      smooth = plots.smooth(rewards, window)
      panel.plot(steps, smooth, color=color, marker=marker, label=f"seed {seed}")
      panel.plot(*panels.series(lines, "eval/accuracy"), "o", color=color, markersize=4)
    panel.set_title(task.replace("_", " "), parse_math=False)
    panel.set(xlabel="step")
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False, loc="best")
  axes[0].set(ylabel="solved", ylim=(0, None))
  with storage.writing(out) as file:
    figure.savefig(file)


def main(argv: list[str]) -> None:
  """Draws the folders that the command line names."""
  logging.set_verbosity(logging.WARNING)
  with arguments.one_line_errors():
    if not flags.FLAGS.out:
      raise SettingError("--out is missing: the file of the picture, as in --out=seeds.png")
    report.check(argv[1:], "experiments.measure.seeds runs/guess_0 runs/guess_1")
    storage.check_file("--out", flags.FLAGS.out, ".png", new=True)
    draw(argv[1:], storage.place(flags.FLAGS.out))
  print(flags.FLAGS.out)


if __name__ == "__main__":
  flags.DEFINE_string("out", "", "File of the picture.")
  app.run(main, flags_parser=functools.partial(arguments.parse_flags, operands=report.MOST + 1))
