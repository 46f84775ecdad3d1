"""Which samples a rollout goes on with."""

import numpy as np

from grpo_jax.sampling import drawing, unfinished


def test_carried_groups_are_the_first_of_each_shard():
  """Those that were dealt out first are in the places that have begun."""
  np.testing.assert_array_equal(drawing.first_places(12, 4, 2), [0, 1, 6, 7])
  np.testing.assert_array_equal(drawing.first_places(12, 12, 2), np.arange(12))
  for count, carry, shards in ((12, 4, 2), (9, 3, 3), (6, 2, 1)):
    order = unfinished.dealt(count, shards)
    assert set(order[drawing.first_places(count, carry, shards)]) == set(range(carry))
