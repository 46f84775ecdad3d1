"""Microbatches of a rollout."""

import jax
import numpy as np
import pytest
import tiny

from grpo_jax.packing.microbatches import join_microbatches, split_microbatches
from grpo_jax.sampling import rollouts


@pytest.mark.parametrize("mesh", [tiny.ONE, (2, 2, 2, 1)])
def test_splitting_into_microbatches_is_undone_by_joining_and_takes_from_every_shard(mesh):
  layout = tiny.layout(mesh)
  x = np.arange(8 * 2 * 3).reshape(8, 2, 3)
  cut = jax.jit(lambda x: split_microbatches(layout, (x, None), 2)[0])(
    rollouts.to_device(layout, x)
  )
  np.testing.assert_array_equal(cut[1], x[1::2])
  np.testing.assert_array_equal(join_microbatches(cut), x)
  assert cut.addressable_shards[0].data.shape[:2] == (2, 4 // layout.size("prompt"))


def test_microbatches_do_not_cut_prompts_over_samples():
  """A prompt's second axis holds tokens, though its length may divide over the shards of samples."""
  layout, r = tiny.layout((1, 2, 2, 2)), tiny.sample()
  cut = jax.jit(lambda r: split_microbatches(layout, r, 2))(rollouts.to_device(layout, r))

  def shape_of_shard(x):
    return x.addressable_shards[0].data.shape

  assert shape_of_shard(cut.prompts.tokens) == (2, tiny.P // 4, tiny.LP)
  assert shape_of_shard(cut.prompts.lengths) == (2, tiny.P // 4)
  assert shape_of_shard(cut.lengths) == (2, tiny.P // 4, tiny.G // 2)
  assert shape_of_shard(cut.tokens) == (2, tiny.P // 4, tiny.G // 2, tiny.L)
