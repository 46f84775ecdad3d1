"""The bar and the table of a run."""

import pytest

from grpo_jax.run.console import remaining, time_left


def test_the_time_that_is_left():
  assert remaining(10.0, 0, 5) == "-:--:--"
  assert remaining(60.0, 2, 122) == "1:01:00"


@pytest.mark.parametrize(
  ("ends", "steps", "text"),
  [
    ([], 5, "-:--:--"),
    ([3.0], 5, "-:--:--"),
    ([50.0, 60.0, 80.0], 300, "1:15:00"),
    ([0.0, 1.0], 0, "0:00:00"),
  ],
)
def test_time_left_leaves_the_first_step_out(ends, steps, text):
  assert time_left(ends, steps) == text
