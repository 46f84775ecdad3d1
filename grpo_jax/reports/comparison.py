"""Several runs of several arms -> what they come to at equal numbers of sampled tokens.

DIR/ARM/LR/SEED are the folders of the runs. An arm's learning rate is the one with the highest mean final accuracy of
the tuning seeds (those of a run that diverged count 0; the lower one of two equals); what is shown of the arm are its
other seeds at that learning rate.

Equal tokens: the budget is what the shortest of the runs that are shown sampled in all, and each run's accuracy is
read there, linearly between two evaluations. An offline run counts a sample when it first learns from it: so much
would have been enough to draw until then.
"""

import html
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.reports import jsonl


class Run(NamedTuple):
  """A finished run. [N]: its N evaluations, from the one before the first step to the one after the last."""

  tokens: np.ndarray  # [N] sampled until then
  accuracy: np.ndarray  # [N]
  seconds: float
  memory_mb: float  # peak; nan where it was not measured
  passes: float  # mean over a rollout


class Row(NamedTuple):
  """What is shown of an arm: its seeds at the chosen learning rate."""

  arm: str
  lr: float
  at_edge: bool  # of the grid: a better one may lie outside
  runs: list[Run]
  diverged: int  # seeds besides `runs`, which count as accuracy 0


def folder(workdir: pathlib.Path, arm: str, lr: float, seed: int) -> pathlib.Path:
  return workdir / arm / f"{lr:g}" / str(seed)


def state(path: pathlib.Path) -> str:
  """`done`, `diverged` or `open` (not begun, going on, or stopped)."""
  if (path / "result.json").exists():
    return "done"
  return "diverged" if (path / "diverged.txt").exists() else "open"


def read(path: pathlib.Path, memory_mb: float = float("nan")) -> Run:
  """A finished run's folder.

  Raises:
    ValueError: it cannot be known how many tokens the run sampled (offline, on data that are not all it sampled).
  """
  config = json.loads((path / "config.json").read_text())
  rows = jsonl.read(path / "metrics.jsonl")
  steps, sampled = sampled_tokens(rows, config)
  evaluated = [row for row in rows if row.get("eval/accuracy") is not None]
  tokens = [sampled[steps <= row["step"]].sum() for row in evaluated]
  accuracy = [row["eval/accuracy"] for row in evaluated]
  passes = [row.get("inner/passes") or 1.0 for row in rows if "loss" in row]
  seconds = json.loads((path / "result.json").read_text())["wall_s"]
  return Run(np.array(tokens, float), np.array(accuracy, float), seconds, memory_mb, float(np.mean(passes or [1.0])))


def sampled_tokens(rows: Sequence[dict], config: dict) -> tuple[np.ndarray, np.ndarray]:
  """(steps done, completion tokens sampled for the last of them), both [steps]."""
  if config["loop"] != "offline":
    pairs = [(row["step"], row["tokens"]) for row in rows if "tokens" in row]
  elif config["offline"]["data"] != "samples" or config["sampler"]["tries"] != 1:
    setting = f"offline.data={config['offline']['data']} with sampler.tries={config['sampler']['tries']}"
    raise ValueError(f"{setting}: how many tokens were sampled for it is not recorded")
  else:
    batch = config["data"]["prompts"] * config["sampler"]["group"]
    first_epoch = config["offline"]["prompts"] // config["data"]["prompts"]
    rows = [row for row in rows if "length/mean" in row and row["step"] <= first_epoch]
    pairs = [(row["step"], row["length/mean"] * batch) for row in rows]
  steps, tokens = np.array(pairs, np.float64).reshape(-1, 2).T
  return steps, tokens


def final_accuracy(path: pathlib.Path) -> float | None:
  """Of a run: 0 if it diverged, None if it is not finished."""
  at = state(path)
  if at != "done":
    return 0.0 if at == "diverged" else None
  return json.loads((path / "result.json").read_text())["accuracy_after"]


def tuning(workdir: pathlib.Path, arm: str, lrs: Sequence[float], seeds: Sequence[int]) -> list[float | None]:
  """The mean final accuracy at each learning rate; None where a run is not finished."""
  means: list[float | None] = []
  for lr in lrs:
    found = [final_accuracy(folder(workdir, arm, lr, seed)) for seed in seeds]
    means.append(None if None in found else float(np.mean(found)))
  return means


def best_lr(workdir: pathlib.Path, arm: str, lrs: Sequence[float], seeds: Sequence[int]) -> float | None:
  """The chosen learning rate; None until the arm's tuning is finished. A grid of one needs none."""
  if len(lrs) == 1:
    return lrs[0]
  means = tuning(workdir, arm, lrs, seeds)
  if None in means:
    return None
  return min(zip(lrs, means), key=lambda pair: (-pair[1], pair[0]))[0]


def rows_of(
  workdir: pathlib.Path,
  arms: Sequence[str],
  lrs: Sequence[float],
  tune_seeds: Sequence[int],
  seeds: Sequence[int],
) -> list[Row]:
  """A row for every arm of which a shown run is finished."""
  peaks: dict[tuple, float] = {}
  for r in jsonl.read(workdir / "runs.jsonl"):
    key = (r["arm"], r["lr"], r["seed"])
    peaks[key] = max(peaks.get(key, 0.0), r["peak_memory_mb"])
  rows = []
  for arm in arms:
    lr = best_lr(workdir, arm, lrs, tune_seeds)
    if lr is None:
      continue
    places = {seed: folder(workdir, arm, lr, seed) for seed in seeds}
    states = {seed: state(path) for seed, path in places.items()}
    done = [read(places[s], peaks.get((arm, lr, s), float("nan"))) for s in seeds if states[s] == "done"]
    diverged = list(states.values()).count("diverged")
    if done or diverged:
      rows.append(Row(arm, lr, len(lrs) > 1 and lr in (min(lrs), max(lrs)), done, diverged))
  return rows


def budget(rows: Sequence[Row]) -> float:
  """Tokens that every run of `rows` has sampled."""
  return min((float(run.tokens[-1]) for row in rows for run in row.runs), default=0.0)


def accuracies(row: Row, tokens: float) -> np.ndarray:
  """[seeds]: the accuracy of each seed when it had sampled so many tokens; 0 of those that diverged."""
  return np.array([np.interp(tokens, run.tokens, run.accuracy) for run in row.runs] + [0.0] * row.diverged)


COLUMNS = (
  ("arm", "The name in experiments/comparisons.py."),
  ("lr", "Chosen by the tuning seeds. *: at the edge of the grid, a better one may lie outside."),
  ("seeds", "Finished seeds that are shown."),
  ("accuracy", "Greedy, at the common number of sampled tokens: mean ± standard deviation over the seeds."),
  ("min to max", "Over the seeds."),
  ("gain", "Points over the warm start, mean over the seeds."),
  ("passes", "Updates that a rollout was used for, mean."),
  ("peak MB", "Resident memory of the process, highest, mean over the seeds."),
  ("seconds", "Of the whole run, evaluation and what it compiled included, median over the seeds."),
  ("tokens", "Completion tokens sampled in the whole run, mean over the seeds."),
)


def cells(row: Row, tokens: float) -> list[str]:
  """A row as text, one entry for each of COLUMNS."""
  found = accuracies(row, tokens)
  spread = f" ± {100 * found.std(ddof=1):.1f}" if len(found) > 1 else ""
  lr = f"{row.lr:g}{'*' if row.at_edge else ''}"
  seeds = f"{len(found)}" + (f", {row.diverged} diverged" if row.diverged else "")
  shown = [
    row.arm,
    lr,
    seeds,
    f"{100 * found.mean():.1f}%{spread}",
    f"{100 * found.min():.1f} to {100 * found.max():.1f}",
  ]
  if not row.runs:
    return shown + ["-"] * 5
  start = np.mean([run.accuracy[0] for run in row.runs])
  mean = lambda name: np.mean([getattr(run, name) for run in row.runs])
  memory, whole = mean("memory_mb"), np.mean([run.tokens[-1] for run in row.runs])
  measured = "-" if np.isnan(memory) else f"{memory:,.0f}"
  return [
    *shown,
    f"{100 * (found.mean() - start):+.1f}",
    f"{mean('passes'):.2g}",
    measured,
    f"{np.median([run.seconds for run in row.runs]):,.0f}",
    f"{whole:,.0f}",
  ]


def markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
  """The notes and the table."""
  tokens = budget(rows)
  names = [name for name, _ in COLUMNS]
  lines = [names, ["---", *["---:"] * (len(names) - 1)], *(cells(row, tokens) for row in rows)]
  return "\n".join([*(f"{note}\n" for note in notes), *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def page(title: str, rows: Sequence[Row], notes: Sequence[str], curves: str, tuned: Sequence[Sequence[str]]) -> str:
  """One HTML page that needs nothing else.

  Args:
    curves: SVG, or a line of text instead.
    tuned: the table of the tuning runs, its head first; left out where it is only that.
  """
  tokens = budget(rows)
  table = [[name for name, _ in COLUMNS], *(cells(row, tokens) for row in rows)]
  meanings = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in COLUMNS)
  return "\n".join(
    [
      "<!doctype html>",
      '<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
      f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
      f"<h1>{html.escape(title)}</h1>",
      *(f"<p>{html.escape(note)}</p>" for note in notes),
      html_table(table),
      f"<dl>{meanings}</dl>",
      "<h2>Accuracy against sampled tokens</h2>",
      curves if curves.startswith("<svg") else f"<p>{html.escape(curves)}</p>",
      *(["<h2>Choice of the learning rate</h2>", html_table(tuned)] if len(tuned) > 1 else []),
      "</html>\n",
    ]
  )


def html_table(rows: Sequence[Sequence[str]]) -> str:
  """A table whose first row is its head."""
  line = lambda row, tag: "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
  body = "\n".join(line(row, "td") for row in rows[1:])
  return f'<div class="wide"><table>\n{line(rows[0], "th")}\n{body}\n</table></div>'


STYLE = """
  body { margin: 0 auto; max-width: 1100px; padding: 16px 20px; font: 14px/1.5 system-ui, sans-serif; color: #1f2430; }
  h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; } p { max-width: 80ch; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
  th, td { padding: 4px 10px; text-align: right; border-bottom: 1px solid #dde1e7; }
  th { color: #69707d; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; font-size: 13px; color: #69707d; }
  dd { margin: 0; } svg { max-width: 100%; height: auto; }
"""
