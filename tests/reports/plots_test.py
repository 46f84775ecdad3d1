"""Pictures and pages of a run's folder."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, environment

from grpo_jax.reports import inspector, panels

matplotlib = pytest.importorskip("matplotlib", exc_type=ImportError)
plots = pytest.importorskip("grpo_jax.reports.plots", exc_type=ImportError)


def write(path, rows, tail=""):
  path.write_text(
    "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + tail, encoding="utf-8"
  )


def size(path):
  """Width and height of a PNG."""
  return struct.unpack(">II", path.read_bytes()[16:24])


def test_every_pass_at_k_that_was_measured_is_drawn(tmp_path):
  lines = [{"step": 1, "kl": 0.1, "eval/accuracy": 0.4}]
  lines += [
    {
      "step": 2,
      "eval/maj@4": 0.5,
      "eval/pass@16": 0.8,
      "eval/pass@4": 0.7,
      "eval/pass@1": 0.3,
      "eval/pass": 1.0,
    }
  ]
  names = [f"{kind}@{k}" for kind, k in (("pass", 1), ("pass", 4), ("pass", 16), ("maj", 4))]
  (accuracy,) = [
    panel for panel in panels.drawn(lines) if panel.title == "accuracy on the test split"
  ]
  assert accuracy.metrics == (
    ("eval/accuracy", "greedy"),
    *((f"eval/{name}", name) for name in names),
  )
  figure = matplotlib.figure.Figure()
  axes = figure.add_subplot()
  plots._draw_panel(axes, lines, accuracy)
  assert [text.get_text() for text in axes.get_legend().get_texts()] == ["greedy", *names]
  assert len({line.get_color() for line in axes.get_lines()}) == 5
  write(tmp_path / "metrics.jsonl", lines)
  assert plots.draw(str(tmp_path)) is not None


def test_clipping_is_drawn_only_if_something_was_clipped():
  """Objectives without a clip report shares of 0, and those without flat groups as well."""
  rows = [
    {"step": 1, "clip_low": 0.0, "clip_high": 0.0, "zero_variance": 0.0},
    {"step": 2, "clip_low": 0.0},
  ]
  assert panels.drawn(rows) == []
  for changes, labels in (
    ({}, ["truncated"]),
    ({"clip_high": 0.1}, ["truncated", "clipped above"]),
  ):
    lines = [row | {"truncated": 0.0} | changes for row in rows]
    (panel,) = panels.drawn(lines)
    axes = matplotlib.figure.Figure().add_subplot()
    plots._draw_panel(axes, lines, panel)
    assert [line.get_label() for line in axes.get_lines()] == labels


def test_smoothing_averages_over_what_there_is():
  np.testing.assert_allclose(plots.smooth(np.array([0.0, 3.0, 6.0, 9.0]), 3), [1.5, 3.0, 6.0, 7.5])
  np.testing.assert_allclose(plots.smooth(np.full(7, 2.0), 4), 2.0)


def test_a_panel_for_each_group_of_metrics(tmp_path):
  rows = [
    {"step": i, "reward/mean": i / 50, "kl": None if i == 3 else 0.1, "length/mean": 9.0, "lr": 1.0}
    for i in range(50)
  ]
  write(
    tmp_path / "metrics.jsonl",
    [{"step": 0, "eval/accuracy": 0.4}, *rows, {"step": 50, "eval/accuracy": 0.9}],
  )
  assert plots.draw(str(tmp_path)) == tmp_path / "curve.png"
  five = size(tmp_path / "curve.png")
  write(tmp_path / "metrics.jsonl", [{"step": i, "loss": 1.0} for i in range(3)])
  plots.draw(str(tmp_path))
  one = size(tmp_path / "curve.png")
  assert five[0] == 3 * one[0] and five[1] > 1.5 * one[1]


def test_a_loss_that_is_rounding_alone_is_not_drawn(tmp_path):
  """At mu = 1 it is 0 up to rounding, and a curve of it would say that nothing is learned."""
  write(tmp_path / "metrics.jsonl", [{"step": i, "loss": 1e-7 * (-1) ** i} for i in range(3)])
  assert plots.draw(str(tmp_path)) is None
  write(tmp_path / "metrics.jsonl", [{"step": i, "loss": 1e-4 * (-1) ** i} for i in range(3)])
  assert plots.draw(str(tmp_path))


def test_nothing_to_draw_draws_nothing(tmp_path):
  assert plots.draw(str(tmp_path)) is None
  write(tmp_path / "metrics.jsonl", [{"step": 0, "unheard_of": 1.0}])
  assert plots.draw(str(tmp_path)) is None and not (tmp_path / "curve.png").exists()


def test_the_headline_says_what_came_of_it(tmp_path):
  folder = tmp_path / "run"
  folder.mkdir()
  assert plots.headline(folder, 200) == "run"
  result = {"accuracy_before": 0.4, "accuracy_after": 0.905, "steps": 200, "wall_s": 300.0}
  (folder / "result.json").write_text(json.dumps(result))
  said = "run: accuracy 40.0% before, 90.5% after 200 steps, 5.0 min"
  assert plots.headline(folder, 199) == plots.headline(folder, 200) == said
  assert plots.headline(folder, 201) == "run"  # it was given more steps and goes on
  (folder / "result.json").write_text(
    '{"accuracy_before": 0.4, "accuracy_after": null, "steps": 3, "wall_s": 1.0}'
  )
  assert plots.headline(folder, 3) == "run"
  result = {"pair_accuracy_before": 0.5, "pair_accuracy_after": 0.75, "steps": 3}
  (folder / "result.json").write_text(json.dumps(result))
  assert plots.headline(folder, 3) == "run: pair accuracy 50.0% before, 75.0% after 3 steps"


def test_a_legend_covers_no_line():
  """Lines go everywhere in the panel of lengths."""
  rows = [
    {"step": i, "length/mean": 50.0, "length/min": float(i), "length/max": 100.0 - i}
    for i in range(100)
  ]
  (panel,) = panels.drawn(rows)
  figure = matplotlib.figure.Figure(figsize=(4.6, 3.5), layout="constrained")
  axes = figure.add_subplot()
  plots._draw_panel(axes, rows, panel)
  figure.draw_without_rendering()
  assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1 - 1
  assert all(tick == round(tick) for tick in axes.get_xticks())


@pytest.mark.parametrize("labels", [2, 3, 4, 6, 13])
def test_a_legend_covers_neither_the_title_nor_the_next_panel(labels):
  names = [f"eval/{kind}@{k}" for kind in ("pass", "maj") for k in (4, 8, 16, 32, 64, 128)]
  rows = [
    {"step": i, "eval/accuracy": 0.5} | dict.fromkeys(names[: labels - 1], 0.5) for i in range(5)
  ]
  (panel,) = panels.drawn(rows)
  figure = matplotlib.figure.Figure(figsize=(13.8, 3.5), layout="constrained")
  axes = figure.subplots(1, 3)
  for each in axes:
    plots._draw_panel(each, rows, panel)
  figure.draw_without_rendering()
  for each in axes:
    (title,) = each.findobj(
      lambda x: isinstance(x, matplotlib.text.Text) and x.get_text() == panel.title
    )
    legend, inside = each.get_legend().get_window_extent(), each.get_window_extent()
    assert len(each.get_legend().get_texts()) == labels and not legend.overlaps(
      title.get_window_extent()
    )
    assert legend.y0 >= inside.y1 - 1 and legend.x0 >= inside.x0 and inside.width > 300


def test_the_step_of_a_single_evaluation_is_whole():
  rows = [{"step": 0, "eval/accuracy": 0.5}]
  axes = matplotlib.figure.Figure().add_subplot()
  plots._draw_panel(axes, rows, panels.drawn(rows)[0])
  assert all(tick == round(tick) for tick in axes.get_xticks())


# -- lines that nobody expects: each is shown sanely, or left out and counted

HOSTILE_VALUES = {
  "an integer of 5,000 digits": "9" * 5000,
  "an integer that no float holds": "1" + "0" * 400,
  "a float that is too large": "1e999",
  "NaN": "NaN",
  "Infinity": "-Infinity",
  "300 lists in one another": "[" * 300 + "]" * 300,
  "100,000 lists in one another": "[" * 100_000 + "]" * 100_000,
  "an object": '{"a": {"b": [1, null]}}',
  "null": "null",
  "a text": '"</script><b>&"',
  "half of a surrogate pair": '"\\ud800"',
  "a text of a million characters": '"' + "x" * 10**6 + '"',
  "true": "true",
  "a list of texts": '["a", "b"]',
  "a list of numbers": "[1e308, -1e308, null, 0]",
  "the largest number of a float64": "1.7e308",
}
HOSTILE_LINES = {
  "no object": "[1, 2]",
  "a number": "7",
  "no JSON": "{'step': 1}",
  "an object without a step": '{"kl": 1.0}',
  "no UTF-8": b'{"step": 1, "question": "\xff\xfe"}',
  "a NUL": b'{"step": 1}\x00',
  "two objects": '{"step": 1}{"step": 2}',
  "a million brackets": "[" * 10**6,
  "an odd name": json.dumps(
    {"step": 4, "eval/pass@" + "9" * 5000: 0.5, "</script>": 1, "__proto__": 2}
  ),
}
FIELDS = (
  "step",
  "question",
  "completion",
  "reward",
  "advantage",
  "rewards",
  "tokens",
  "advantages",
  "logprobs",
)
FIELDS += ("disagreement", "answer", "anything", "sampled", "turn_rewards", "group", "sample")
FIELDS += (
  "entropies",
  "logprobs_after",
  "ratios",
  "bounds",
  "stands",
  "logprob_before",
  "teacher_prompt",
)
METRICS = ("step", "reward/mean", "loss", "kl", "eval/accuracy", "length/max")


def hostile_lines(good: dict, fields: tuple[str, ...]) -> dict[str, bytes]:
  """A line with each value in each field, and those that are odd as a whole, by what is odd."""
  lines = {
    what: line if isinstance(line, bytes) else line.encode() for what, line in HOSTILE_LINES.items()
  }
  for name in fields:
    for what, value in HOSTILE_VALUES.items():
      lines[f"{name}: {what}"] = json.dumps(good | {name: "@"}).replace('"@"', value).encode()
  return lines


GOOD = {
  "step": 3,
  "question": "1 + 1?",
  "completion": "2",
  "reward": 1.0,
  "advantage": 0.5,
  "rewards": {"a": 1.0},
}
GOOD |= {"tokens": ["2"], "advantages": [0.5], "logprobs": [-0.1]}


@pytest.mark.parametrize("kind", ["values", "lines"])
def test_a_picture_takes_any_line_of_metrics(tmp_path, capsys, kind):
  good = {
    "step": 1,
    "reward/mean": 0.5,
    "loss": 0.1,
    "kl": 0.1,
    "eval/accuracy": 0.5,
    "length/max": 3.0,
  }
  lines = hostile_lines(good, METRICS if kind == "values" else ())
  (tmp_path / "metrics.jsonl").write_bytes(
    b"\n".join([json.dumps(good).encode(), *lines.values()]) + b"\n"
  )
  assert plots.draw(str(tmp_path)) is not None
  assert "lines of" in capsys.readouterr().err


@pytest.mark.parametrize(
  "content",
  ["{", "[]", "", "\xff", '{"steps": "x"}', '{"accuracy_after": []}', '{"wall_s": 1e999}'],
)
def test_a_picture_takes_any_result(tmp_path, content):
  write(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 0.5}])
  (tmp_path / "result.json").write_bytes(content.encode("latin-1"))
  assert plots.draw(str(tmp_path)) is not None


def test_a_folder_may_have_any_name(tmp_path):
  folder = tmp_path / r"a $\bad_{name}$ $"
  folder.mkdir()
  write(folder / "metrics.jsonl", [{"step": 1, "loss": 0.5}])
  assert plots.draw(str(folder)) == folder / "curve.png"


def test_a_command_in_a_notebook_draws_the_curve(tmp_path):
  """Its environment names a backend that the notebook's own environment alone has."""
  write(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 0.5}])
  code = f"from experiments import run; run.draw({str(tmp_path)!r})"
  told = environment(MPLBACKEND="of_a_notebook", PYTHONPATH=str(ROOT))
  subprocess.run([sys.executable, "-c", code], env=told, check=True)
  assert (tmp_path / "curve.png").is_file()


def test_a_run_is_none_the_worse_for_its_reports(tmp_path, monkeypatch, capsys):
  from experiments import run

  for module in (inspector, plots):
    monkeypatch.setattr(module, "write" if module is inspector else "draw", lambda workdir: 1 / 0)
  run.draw(str(tmp_path))
  said = capsys.readouterr().out
  assert said == "".join(
    f"warning: no {name}: ZeroDivisionError: division by zero\n"
    for name in ("samples.html", "curve.png")
  )
