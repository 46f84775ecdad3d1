"""Which completion goes to which row, how long the lists are, and what is padding, from lengths
alone.
"""

import dataclasses

import numpy as np
import pytest
import tiny

from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.types import STOPPED, Prompts, Rollouts


def rollouts(lengths, longest=None) -> Rollouts:
  lengths = np.asarray(lengths, np.int32)
  shape = (*lengths.shape, longest or int(lengths.max()))
  tokens = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
  ended = np.full(lengths.shape, STOPPED)
  zeros = np.zeros(shape, np.float32)
  return Rollouts(
    Prompts(np.ones((len(lengths), 3), np.int32), np.full(len(lengths), 3)),
    tokens,
    lengths,
    ended,
    zeros,
    zeros,
  )


def long_tailed(rng, prompts, group, longest) -> np.ndarray:
  """Lengths such as a policy gives them: most are short, few reach the limit."""
  return np.clip(rng.lognormal(np.log(longest / 5), 0.8, (prompts, group)), 1, longest).astype(
    np.int32
  )


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_packing_holds_every_token_once(shards):
  rng = np.random.default_rng(shards)
  packed = 0
  for longest, group in ((8, 8), (13, 4), (64, 16), (100, 12)):
    for draw in range(10):
      lengths = long_tailed(rng, 3, group, longest)
      lengths[rng.random(lengths.shape) < 0.1] = 0
      if draw == 0:
        lengths[:] = 0
      take = plan.assign_rows(lengths, longest, shards)
      if take is None:
        continue
      packed += 1
      rows = take.shape[1]
      assert (
        rows % shards == 0 and rows <= group and take.shape[2] <= longest and take.dtype == np.int32
      )
      for p, shard in np.ndindex(3, shards):
        own = lengths[p].reshape(shards, -1)[shard]
        rows_of_shard = take[p].reshape(shards, rows // shards, -1)[shard]
        wanted = [g * longest + t for g, n in enumerate(own) for t in range(n)]
        # each token of its samples once, and no other
        assert sorted(rows_of_shard[rows_of_shard >= 0]) == wanted
        for row in rows_of_shard:
          for place in np.flatnonzero(row >= 0):  # a completion lies in one piece, in order
            if row[place] % longest:
              assert row[place - 1] == row[place] - 1
          ends = np.flatnonzero(row < 0)
          assert not ends.size or (row[ends[0] :] < 0).all()  # padding comes last
  assert packed > 20


@pytest.mark.parametrize(
  "mesh, microbatches", [(tiny.ONE, 1), (tiny.ONE, 2), ((1, 2, 1, 1), 2), ((1, 2, 2, 1), 1)]
)
def test_the_list_of_a_shard_and_microbatch_holds_its_tokens(mesh, microbatches):
  """And is at most 10.6% longer than the longest of them."""
  rng, layout = np.random.default_rng(0), tiny.layout(mesh)
  lengths = long_tailed(rng, 8, 8, 64)
  shards, samples = mesh[1], mesh[2]
  most = 0
  for j in range(microbatches):
    for shard in np.split(lengths[j::microbatches], shards):  # as split_microbatches cuts
      most = max(most, *(x.sum() for x in np.split(shard, samples, axis=1)))
  assert (
    most <= plan.pack(rollouts(lengths, longest=64), layout, microbatches).list_size <= most * 1.106
  )


@pytest.mark.parametrize(
  "mesh, microbatches", [(tiny.ONE, 1), (tiny.ONE, 2), ((1, 2, 1, 1), 2), ((1, 2, 2, 1), 1)]
)
def test_the_list_of_prompts_holds_those_of_each_shard_and_microbatch(mesh, microbatches):
  rng, layout = np.random.default_rng(0), tiny.layout(mesh)
  sizes = set()
  for _ in range(50):
    lengths = long_tailed(rng, 32, 1, 64)[:, 0]
    most = max(
      s.sum() for j in range(microbatches) for s in np.split(lengths[j::microbatches], mesh[1])
    )  # as split_microbatches cuts
    size = plan.prompt_list_size(
      Prompts(np.zeros((32, 64), np.int32), lengths), layout, microbatches
    )
    assert most <= size < 1.5 * most
    sizes.add(size)
  assert len(sizes) <= 3


def test_prompts_have_a_list_where_it_saves_a_quarter():
  layout = tiny.layout()

  def size(*lengths):
    return plan.prompt_list_size(
      Prompts(np.zeros((len(lengths), 8), np.int32), np.array(lengths)), layout
    )

  assert size(8, 8, 8, 8) is None and size(8, 8, 8, 1) is None  # 32 tokens for 25
  assert size(8, 8, 8, 0) == 24 and size(8, 8, 1, 0) == 24 and size(8, 8, 0, 0) == 16
  r = dataclasses.replace(
    rollouts(np.full((2, 4), 8), longest=8), prompts=Prompts(np.zeros((2, 8)), np.array([8, 1]))
  )
  # 4 of 16 + 64 tokens
  assert plan.prompt_list_size(r.prompts, layout) == 12 and plan.pack(r, layout) == Packing()
  few = dataclasses.replace(
    rollouts(np.full((2, 1), 8), longest=8), prompts=Prompts(np.zeros((2, 8)), np.array([8, 0]))
  )
  assert plan.pack(few, layout) == Packing(prompt_list_size=8)  # 8 of 16 + 16


def test_a_list_of_long_tails_is_less_than_a_tenth_padding(record_property):
  """Rectangles of long-tailed lengths are mostly padding at G = 8."""
  rng, layout = np.random.default_rng(0), tiny.layout()
  before, after = [], []
  for _ in range(50):
    lengths = long_tailed(rng, 16, 8, 256)
    r = rollouts(lengths, longest=256)
    before.append(plan.padding(r, Packing(), layout)["padding_fraction"])
    after.append(plan.padding(r, plan.pack(r, layout), layout)["padding_fraction"])
  record_property("padding_rectangle", float(np.mean(before)))
  record_property("padding_packed", float(np.mean(after)))
  print(f"padding: {np.mean(before):.1%} of rectangles, {np.mean(after):.1%} of lists")
  assert np.mean(before) > 0.6
  assert np.mean(after) < 0.1 and max(after) < 0.1


def test_packing_compiles_few_shapes():
  rng, layout = np.random.default_rng(0), tiny.layout()
  packings = []
  for _ in range(200):
    r = rollouts(long_tailed(rng, 16, 8, 96), longest=96)
    prompts = Prompts(np.zeros((16, 96), np.int32), long_tailed(rng, 16, 1, 96)[:, 0])
    packings.append(plan.pack(dataclasses.replace(r, prompts=prompts), layout))
  assert len({p.token_index.shape for p in packings}) <= 12
  assert len({p.list_size for p in packings}) <= 6
  assert 1 < len({p.prompt_list_size for p in packings}) <= 4
  assert len({(p.token_index.shape, p.list_size, p.prompt_list_size) for p in packings}) <= 40


def test_coarse_sizes_are_two_an_octave():
  assert [plan.round_up_coarsely(n) for n in (0, 1, 2, 3, 4, 5, 7, 9, 13, 1025)] == [
    1,
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    1536,
  ]


def test_sizes_of_lists_are_a_tenth_apart():
  assert [plan.round_up_finely(n) for n in (1, 31, 32, 33, 36, 64, 65, 1000, 1025)] == [
    1,
    31,
    32,
    35,
    38,
    64,
    70,
    1024,
    1120,
  ]
  sizes = [plan.round_up_finely(n) for n in range(1025, 2049)]
  assert len(set(sizes)) == 8 and all(
    n <= size <= 1.106 * n for n, size in zip(range(1025, 2049), sizes)
  )


def test_packing_that_saves_nothing_is_left_out():
  layout = tiny.layout()
  assert plan.pack(rollouts(np.full((2, 4), 8), longest=8), layout) == Packing()
  assert plan.pack(rollouts(np.full((2, 1), 8), longest=8), layout) == Packing()
  assert plan.assign_rows(np.full((2, 4), 4), 8).shape == (2, 4, 4)  # narrower rows
  assert plan.assign_rows(np.array([[8, 4, 4, 1]]), 8).shape == (1, 3, 8)


def test_on_a_tpu_a_row_holds_one_completion():
  """Splash attention has no mask for two of them that share a prompt."""
  r = rollouts(np.array([[3, 1, 0, 2]]), longest=8)
  np.testing.assert_array_equal((plan.pack(r, tiny.layout()).token_index >= 0).sum(2), [[4, 2]])
  packing = plan.pack(r, tiny.on("tpu"))
  # none for what is empty
  np.testing.assert_array_equal((packing.token_index >= 0).sum(2), [[3, 2, 1]])
  assert packing.token_index.shape == (1, 3, 4) and packing.list_size == 6


def test_the_group_that_needs_most_decides_the_rows_of_all():
  lengths = np.array([[1] * 8, [8, 8, 8, 1, 1, 1, 1, 1], [0] * 8])
  take = plan.assign_rows(lengths, 8)
  assert take.shape == (3, 4, 8)
  assert ((take >= 0).sum((1, 2)) == lengths.sum(1)).all()


def test_trim_keeps_every_prompt_and_few_shapes():
  p = tiny.prompts(width=40)
  assert plan.trim(p).tokens.shape == (tiny.P, 10)  # 40, 20, 10; the longest has 6
  assert plan.trim(Prompts(p.tokens[:, :11], p.lengths)).tokens.shape == (tiny.P, 6)
  assert plan.trim(Prompts(p.tokens, np.zeros_like(p.lengths))).tokens.shape == (tiny.P, 1)
  np.testing.assert_array_equal(plan.trim(p).tokens, p.tokens[:, :10])


def test_padding():
  """Of rectangles, of rows, of lists: 12 completion tokens, prompts of 2 and 4 tokens in a width of
  8.
  """
  r = rollouts([[2, 4], [6, 0]], longest=8)
  r = dataclasses.replace(
    r, prompts=Prompts(np.zeros((2, 8), np.int32), np.array([2, 4], np.int32))
  )
  layout = tiny.layout()
  assert plan.padding(r, Packing(), layout) == {
    "padding_fraction": pytest.approx(1 - 12 / 32),
    "prompt_padding_fraction": pytest.approx(10 / 16),
  }
  rows = Packing(np.zeros((2, 1, 8), np.int32))
  assert plan.padding(r, rows, layout)["padding_fraction"] == pytest.approx(1 - 12 / 16)
  assert plan.padding(r, Packing(list_size=7), layout, 2)["padding_fraction"] == pytest.approx(
    1 - 12 / 14
  )
  listed = plan.padding(r, Packing(prompt_list_size=4), layout, 2)
  assert listed["prompt_padding_fraction"] == pytest.approx(1 - 6 / 8)
  assert plan.padding(rollouts([[0]], longest=4), Packing(), layout) == {}
