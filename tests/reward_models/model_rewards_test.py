"""Rewards from the scores of reward models: at which token, what a completion that was cut off
gets, on the mesh.
"""

import numpy as np

from grpo_jax.rewards import combine
from grpo_jax.types import STOPPED, Completion, Example


def test_rewards_of_models_are_added_to_those_of_functions():
  example, completion = Example("", "", "", {}), Completion("", [1, 2, 3], STOPPED, [0, 2])

  def steps(p, g, completion):
    return [(0, 0.5), (2, 0.25 + g)]

  def broken(p, g, completion):
    return [(2, float("nan"))]

  found = combine.score(
    [("one", lambda *_: 1.0, 2.0)],
    [example],
    [[completion] * 2],
    4,
    -7.0,
    models=[("a", steps, 10.0), ("b", broken, 1.0)],
  )
  np.testing.assert_array_equal(found.rewards[0], [[5, 0, 2 + 2.5 - 7, 0], [5, 0, 2 + 12.5 - 7, 0]])
  np.testing.assert_array_equal(found.given[0], [[True, False, True, False]] * 2)
  np.testing.assert_allclose(found.components[0], [[1, 0.375, -7], [1, 0.875, -7]])
  assert [(fault.sample, fault.name) for fault in found.faults] == [(0, "b"), (1, "b")]
