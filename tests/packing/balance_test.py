"""Tests the order of groups that gives shards and microbatches about as many tokens."""

import numpy as np
import pytest

from grpo_jax.packing import balance, plan


def largest(tokens, shards, microbatches):
  """Returns the tokens of the fullest shard and microbatch, which `plan.pack` makes room for."""
  return plan.most_tokens(np.asarray(tokens)[:, None], shards, microbatches)


def test_by_hand():
  """Puts 9 on the first of two shards, 7 and 6 on the second, which is full, and 1 on the first."""
  assert balance.order(np.array([9, 6, 7, 1]), 2, 1, 1).tolist() == [0, 3, 1, 2]
  # two microbatches on one shard, places 0, 2 and 1, 3
  assert balance.order(np.array([9, 6, 7, 1]), 1, 1, 2).tolist() == [0, 1, 3, 2]


def test_empty_groups_at_the_end_go_to_all_shards():
  tokens = np.array([5] * 8 + [0] * 8)
  new = tokens[balance.order(tokens, 4, 1, 1)]
  assert new.reshape(4, 4).sum(1).tolist() == [10] * 4 and largest(tokens, 4, 1) == 20


@pytest.mark.parametrize("shards, minibatches, each", [(1, 1, 4), (8, 1, 1), (2, 2, 4), (4, 3, 1)])
def test_groups_stay_in_their_minibatch_and_the_fullest_part_has_less(shards, minibatches, each):
  rng = np.random.default_rng(0)
  for _ in range(20):
    tokens = rng.lognormal(5, 0.5, 96).astype(np.int64)
    order = balance.order(tokens, shards, minibatches, minibatches * each)
    assert sorted(order.tolist()) == list(range(96))
    assert (order % minibatches == np.arange(96) % minibatches).all()
    before = largest(tokens, shards, minibatches * each)
    after = largest(tokens[order], shards, minibatches * each)
    assert after < before
    if shards == 8:  # nothing is left to gain: twelve groups for each
      assert after < 1.05 * tokens.sum() / 8


def test_without_parts_and_without_a_gain_nothing_moves():
  tokens = np.array([3, 9, 1, 7])
  assert balance.order(tokens, 1, 1, 1).tolist() == [0, 1, 2, 3]
  assert balance.order(tokens, 1, 4, 4).tolist() == [0, 1, 2, 3]
  assert balance.order(np.array([5, 5, 5, 5]), 2, 1, 1).tolist() == [0, 1, 2, 3]
