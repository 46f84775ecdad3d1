"""Rewards of whole groups."""

import pytest

from grpo_jax.rewards import group
from rewards.group_reward_test import EXAMPLE, written


@pytest.mark.parametrize(
  "right, lengths, rewards",
  [
    # lambda = 0.5 - (length - 2) / (10 - 2): 0.5, 0, -0.25, -0.5
    ("yyyy", (2, 6, 8, 10), (0.5, 0.0, -0.25, -0.5)),
    ("nnnn", (2, 6, 8, 10), (0.0, 0.0, -0.25, -0.5)),
    ("nyny", (2, 6, 8, 10), (0.0, 0.0, -0.25, -0.5)),
    ("yn", (3, 4), (0.5, -0.5)),
    ("ny", (3, 4), (0.0, -0.5)),  # the shortest counts whether it is right or wrong
    ("yny", (5, 5, 5), (0.0, 0.0, 0.0)),
    ("y", (5,), (0.0,)),
  ],
)
def test_shorter_right_ones_get_more(right, lengths, rewards):
  completions = [
    written(n, "#### 72" if solved == "y" else "#### 7") for solved, n in zip(right, lengths)
  ]
  assert group.shortest_correct(EXAMPLE, completions) == list(rewards)
