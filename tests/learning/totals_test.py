"""Metrics combined over microbatches and passes."""

import pathlib
import re

import jax.numpy as jnp
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.learning import totals
from grpo_jax.objectives import metrics


def test_metrics_are_summed_or_taken_the_maximum_of_by_their_names():
  def pair(*x):
    return (jnp.array(x), jnp.ones(len(x)))

  got = totals.combine_metrics({"a": pair(1.0, 3.0), "b_max": pair(1.0, 3.0)})
  assert {k: (float(t), float(c)) for k, (t, c) in got.items()} == {"a": (4, 2), "b_max": (3, 1)}
  for name, (total, count) in got.items():
    start = totals.empty_metric(name)
    again = totals.combine_metrics({name: tuple(jnp.stack(x) for x in zip(start, (total, count)))})
    assert again[name] == (total, count)


def documented() -> list[str]:
  """Returns the names of metrics.jsonl in the table of docs/metrics.md."""
  page = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"
  text = page.read_text(encoding="utf-8").partition("## samples.jsonl")[0]
  cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
  return re.findall(r"`([^`]*)`", " ".join(cells))


def test_a_loss_may_report_what_objectives_do_and_no_other_metric_of_a_run():
  lines = re.findall(r"^    (\w[\w ]*?)(?:  +.*)?$", metrics.__doc__, re.MULTILINE)
  of_objectives = " ".join(lines).split()
  names = [name for name in documented() if name not in of_objectives]
  assert len(names) > 40
  for name in names:
    with pytest.raises(SettingError, match=f"'mine': its loss returns the metric '{name}'"):
      totals.check_names(["fine", name], "mine")
  totals.check_names(of_objectives, "mine")
