"""Checks what the cells of a comparison's table say of an arm."""

import numpy as np
import pytest

from grpo_jax.reports import comparison, comparison_page


def run(**changes):
  """Returns a finished run that was evaluated before and after ten tokens."""
  tokens, accuracy = np.array([0.0, 10.0]), np.array([0.1, 0.2])
  return comparison.Run(tokens, accuracy, 60.0, np.nan, 1.0, np.nan, np.nan, np.nan)._replace(
    **changes
  )


def line(*runs):
  """Returns the cells of an arm by the names of their columns."""
  found = comparison_page.cells(comparison.Arm("a", 0.1, False, list(runs), 0), 10)
  return dict(zip([name for name, _ in comparison_page.COLUMNS], found, strict=True))


def test_the_memory_of_an_arm_is_that_of_the_run_that_compiled_least():
  assert line(*(run(memory_mb=mb) for mb in (1378.0, 883.0, 1032.0)))["peak MB"] == "883"


def test_pass_at_1_has_its_spread_over_the_seeds():
  assert line(run(pass_at_1=0.4, pass_at_k=0.7))["pass@1"] == "40.0%"
  two = line(run(pass_at_1=0.4, pass_at_k=0.7), run(pass_at_1=0.5, pass_at_k=0.7))
  assert two["pass@1"] == "45.0% ± 7.1" and two["pass@k"] == "70.0%"


@pytest.mark.parametrize("column", ["pass@1", "pass@k", "entropy", "peak MB"])
def test_what_was_not_measured_is_a_dash(column):
  assert line(run())[column] == "-"
