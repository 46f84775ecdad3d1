"""Rewards of single steps."""

import pytest
from answered import completion, example

from grpo_jax.rewards import steps


def test_steps_correct():
  solved = example("72", results=[24, 72])

  def check(text, ends):
    return steps.steps_correct(solved, completion(text, tokens=ends[-1] + 1, step_ends=ends))

  assert check("Ann has 48 / 2 = 24\nIn all 48+24=$72 pens.\n#### 72", [4, 9, 12]) == [
    (4, 1.0),
    (9, 1.0),
    (12, 1.0),
  ]
  # A wrong step, its honest consequence, and a wrong answer.
  assert check("48 / 2 = 26\n48 + 26 = 74\n#### 74", [4, 9, 12]) == [(4, 0.0), (9, 0.0), (12, 0.0)]
  # A wrong step and a right one after it.
  assert check("48 / 2 = 26\n48 + 24 = 72\n#### 72", [4, 9, 12]) == [(4, 0.0), (9, 1.0), (12, 1.0)]
  # A step left out, one too many, and the answer alone.
  assert check("48 + 24 = 72\n#### 72", [4, 9]) == [(4, 0.0), (9, 0.0)]
  assert check("48 / 2 = 24\n48 + 24 = 72\n72 + 0 = 72\n#### 72", [1, 2, 3, 4]) == [
    (1, 1.0),
    (2, 1.0),
    (3, 0.0),
    (4, 0.0),
  ]
  assert check("#### 72", [3]) == [(3, 0.0)]
  # The stop token alone.
  assert check("", [0]) == [(0, 0.0)]
  with pytest.raises(ValueError, match="3 lines and 2 steps: .* use data.steps='line'"):
    check("48 / 2 = 24\n48 + 24 = 72\n#### 72", [4, 12])


@pytest.mark.parametrize(
  "line",
  [
    "20 + 3 = 24",
    "24",
    "= 24",
    "24 = 24",
    "24 / 0 = 24",
    "0 / 0 = 24",
    "2 + 4 * 6 = 24",
    "20 + 4 = 24 + 1",
    "120 - 96 = 24 = 25",
  ]
  + ["1.20 + 4 = 24", "7 / 2 = 3"],
)
def test_a_step_needs_a_true_equation(line):
  step = completion(line, step_ends=[4])
  assert steps.steps_correct(example(results=[24]), step) == [(4, 0.0)]
  assert steps.steps_correct(example(results=[3]), step) == [(4, 0.0)]
