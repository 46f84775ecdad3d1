"""Makes the page of a comparison: a table with what each column means, in HTML and Markdown."""

import html
from collections.abc import Sequence

import numpy as np

from grpo_jax.reports.comparison import Arm, accuracies, budget

COLUMNS = (
  ("arm", "The name in the file of --config."),
  (
    "lr",
    "Of several, chosen by the tuning seeds. *: the grid ends here, a better one may lie outside.",
  ),
  ("seeds", "Finished seeds that are shown."),
  ("accuracy", "Greedy, at the common number of tokens: mean ± standard deviation over the seeds."),
  ("min to max", "Over the seeds."),
  ("gain", "Points over the warm start, mean over the seeds."),
  (
    "pass@1",
    "After the last step, of all eval.samples samples: mean ± standard deviation over the seeds. "
    "It varies less than greedy accuracy.",
  ),
  ("pass@k", "After the last step, of eval.samples samples a problem, mean over the seeds."),
  ("entropy", "Of a token in nats, over the last quarter of the steps, mean over the seeds."),
  ("passes", "Passes over a rollout, each of learner.minibatches updates, mean."),
  ("peak MB", "Highest resident memory of the process, least of the seeds: compiling needs more."),
  ("seconds", "Of the whole run with evaluation and compilation, median over the seeds."),
  ("tokens", "Completion tokens sampled in the whole run, mean over the seeds."),
)


def percent(values: np.ndarray) -> str:
  """Returns the mean of shares [seeds] with their standard deviation, if there are several."""
  spread = f" ± {100 * values.std(ddof=1):.1f}" if len(values) > 1 else ""
  return f"{100 * values.mean():.1f}%{spread}"


def cells(arm: Arm, tokens: float) -> list[str]:
  """Returns the texts of an arm in the table, one for each of COLUMNS, at that number of tokens."""
  values = accuracies(arm, tokens)
  texts = [
    arm.name,
    f"{arm.lr:g}{'*' if arm.at_edge else ''}",
    f"{len(values)}" + (f", {arm.diverged} diverged" if arm.diverged else ""),
    percent(values),
    f"{100 * values.min():.1f} to {100 * values.max():.1f}",
  ]
  if not arm.runs:
    return texts + ["-"] * (len(COLUMNS) - len(texts))
  start = np.mean([run.accuracy[0] for run in arm.runs])
  memory = np.min([run.memory_mb for run in arm.runs])
  sampled = [run.pass_at_1 for run in arm.runs]
  solved = np.mean([run.pass_at_k for run in arm.runs])
  entropy = np.mean([run.entropy for run in arm.runs])
  return [
    *texts,
    f"{100 * (values.mean() - start):+.1f}",
    "-" if np.isnan(solved) else percent(np.array(sampled)),
    "-" if np.isnan(solved) else f"{100 * solved:.1f}%",
    "-" if np.isnan(entropy) else f"{entropy:.3f}",
    f"{np.mean([run.passes for run in arm.runs]):.2g}",
    "-" if np.isnan(memory) else f"{memory:,.0f}",
    f"{np.median([run.seconds for run in arm.runs]):,.0f}",
    f"{np.mean([run.tokens[-1] for run in arm.runs]):,.0f}",
  ]


def markdown(arms: Sequence[Arm], notes: Sequence[str]) -> str:
  """Returns the notes and the table as Markdown."""
  tokens = budget(arms)
  names = [name for name, _ in COLUMNS]
  rows = [names, ["---", *["---:"] * (len(names) - 1)], *(cells(arm, tokens) for arm in arms)]
  lines = [*(f"{note}\n" for note in notes), *("| " + " | ".join(row) + " |" for row in rows)]
  return "\n".join(lines) + "\n"


def page(
  title: str, arms: Sequence[Arm], notes: Sequence[str], curves: str, tuned: Sequence[Sequence[str]]
) -> str:
  """Returns a self-contained HTML page.

  Args:
    title: of the page.
    arms: the rows of the table.
    notes: the paragraphs above the table.
    curves: an SVG, or a line of text in its place.
    tuned: the rows of the table of the tuning runs, its head first; a head alone is left out.
  """
  tokens = budget(arms)
  table = [[name for name, _ in COLUMNS], *(cells(arm, tokens) for arm in arms)]
  meanings = "".join(
    f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in COLUMNS
  )
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
  """Returns a table whose first row is its head."""
  head, *body = rows
  lines = "\n".join([_html_row(head, "th"), *(_html_row(row, "td") for row in body)])
  return f'<div class="wide"><table>\n{lines}\n</table></div>'


def _html_row(texts: Sequence[str], tag: str) -> str:
  return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


STYLE = """
  body { margin: 0 auto; max-width: 1100px; padding: 16px 20px; color: #1f2430; }
  body { font: 14px/1.5 system-ui, sans-serif; }
  h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; } p { max-width: 80ch; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
  th, td { padding: 4px 10px; text-align: right; border-bottom: 1px solid #dde1e7; }
  th { color: #69707d; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; }
  dl { font-size: 13px; color: #69707d; }
  dd { margin: 0; } svg { max-width: 100%; height: auto; }
"""
