"""The programs of a run are few, hold every batch, and are the same when it goes on."""

import json

import jax
import numpy as np
import pytest
import tiny
from plan_test import long_tailed, rollouts

from grpo_jax.packing import plan, sizes
from grpo_jax.packing.sizes import Sizes
from grpo_jax.types import Prompts

ROOM = 64  # the longest prompt and completion that there may be


def batches(steps, layout_seed=0, growth=4.0):
  """Rollouts of 16 prompts and 8 long-tailed completions of each, whose mean grows."""
  rng = np.random.default_rng(layout_seed)
  for step in range(steps):
    lengths = long_tailed(rng, 16, 8, ROOM * growth ** (step / steps) / growth)
    prompts = long_tailed(rng, 16, 1, ROOM)[:, 0]
    lengths[rng.random(lengths.shape) < 0.05] = 0
    batch = rollouts(lengths, longest=ROOM)
    vars(batch)["prompts"] = plan.trim(Prompts(np.ones((16, ROOM), np.int32), prompts))
    yield batch


def shapes(batch, packing):
  rows = None if packing.token_index is None else packing.token_index.shape
  return batch.prompts.tokens.shape, rows, packing.list_size, packing.prompt_list_size


@pytest.mark.parametrize("most", [1, 2, 4, 8])
@pytest.mark.parametrize("mesh, microbatches", [(tiny.ONE, 1), ((1, 2, 2, 1), 2)])
def test_programs_are_at_most_so_many_and_hold_every_batch(most, mesh, microbatches):
  few = tiny.sizes(mesh, most, ROOM, microbatches)
  learned, sampled = set(), set()
  for batch in batches(60):
    prompts, size = few.for_sampler(batch.prompts, few.layout)
    sampled.add((prompts.tokens.shape, size))
    np.testing.assert_array_equal(prompts.lengths, batch.prompts.lengths)
    got, packing = few.for_learner(batch)
    learned.add(shapes(got, packing))
    assert got.prompts.tokens.shape[1] >= got.prompts.lengths.max()
    for lengths, held, samples in (
      (batch.lengths, packing.list_size, mesh[2]),
      (batch.prompts.lengths[:, None], packing.prompt_list_size, 1),
    ):
      assert held is None or held >= plan.most_tokens(lengths, mesh[1], microbatches, samples)
    if packing.token_index is not None:
      assert sorted(packing.token_index[packing.token_index >= 0]) == sorted(
        g % (len(row) // mesh[2]) * ROOM + t
        for row in batch.lengths
        for g, n in enumerate(row)
        for t in range(n)
      )
  assert 1 <= len(learned) <= most and 1 <= len(sampled) <= most


@pytest.mark.parametrize(("most", "bound"), [(0, sizes.BEGUN), (1, 1), (2, 2), (8, sizes.BEGUN)])
@pytest.mark.parametrize("mesh", [tiny.ONE, (1, 2, 2, 1)])
def test_programs_of_samples_that_have_begun_are_bounded_in_any_case(most, bound, mesh):
  """Each turn is longer than the one before, and fewer samples are left; all tokens find a place."""
  few = tiny.sizes(mesh, most, ROOM)
  begun = set()
  for turn, batch in enumerate(batches(60, growth=16.0)):
    batch.lengths[np.random.default_rng(turn).random(batch.lengths.shape) < turn / 60] = 0
    got, packing = few.for_begun(batch, few.layout)
    begun.add(shapes(got, packing))
    assert got.prompts.tokens.shape[1] >= batch.prompts.lengths.max()
    np.testing.assert_array_equal(got.lengths, batch.lengths)
    for lengths, held, samples in (
      (batch.lengths, packing.list_size, mesh[2]),
      (batch.prompts.lengths[:, None], packing.prompt_list_size, 1),
    ):
      assert held is None or held >= plan.most_tokens(lengths, mesh[1], 1, samples)
    if packing.token_index is not None:
      assert (packing.token_index >= 0).sum() == batch.lengths.sum()
  assert 1 <= len(begun) <= len(few.begun) <= bound
  assert most == 1 or len(begun) > 1
  assert few.sampler == few.learner == []  # their programs are others


def test_the_sampler_of_samples_that_have_begun_has_its_own_mesh():
  """Its lists are of the shards of the layout that it is given, in one microbatch."""
  few, layout = tiny.sizes(tiny.ONE, 2, ROOM, microbatches=4), tiny.layout((1, 2, 2, 1))
  batch = next(batches(1))
  got, packing = few.for_begun(batch, layout)
  want, same = tiny.sizes((1, 2, 2, 1), 2, ROOM).for_learner(batch)
  assert shapes(got, packing) == shapes(want, same)


def test_without_a_bound_every_batch_has_its_own():
  batch = next(batches(1))
  own = tiny.sizes(most=0, width=ROOM)
  got, packing = own.for_learner(batch)
  assert got is batch and shapes(batch, packing) == shapes(batch, plan.pack(batch, tiny.layout()))
  prompts, size = own.for_sampler(
    Prompts(np.ones((16, ROOM), np.int32), batch.prompts.lengths), own.layout
  )
  assert prompts.tokens.shape == batch.prompts.tokens.shape
  assert size == plan.prompt_list_size(batch.prompts, tiny.layout())


@pytest.mark.parametrize("most", [0, 8])
def test_a_batch_of_nothing_has_lists_of_one_entry_at_least(most):
  """All groups of a first step may be left out, as their answers are all wrong."""
  nothing = rollouts(np.zeros((16, 8), np.int32), longest=ROOM)
  vars(nothing)["prompts"] = Prompts(np.ones((16, ROOM), np.int32), np.zeros(16, np.int32))
  _, packing = tiny.sizes(tiny.ONE, most, ROOM).for_learner(nothing)
  assert packing.list_size is None or packing.list_size > 0
  assert packing.prompt_list_size is None or packing.prompt_list_size > 0


def test_more_programs_pad_less():
  padding = []
  for most in (1, 2, 4, 8):
    few, found = tiny.sizes(most=most, width=ROOM), []
    for batch in batches(60):
      got, packing = few.for_learner(batch)
      found.append(plan.padding(got, packing, tiny.layout())["padding_fraction"])
    padding.append(np.mean(found))
  assert padding == sorted(padding, reverse=True) and padding[-1] < 0.25


def test_growth_costs_one_program_at_a_time_and_each_holds_the_ones_before():
  few = tiny.sizes(most=8, width=ROOM)
  made = 0
  for batch in batches(60, growth=8.0):
    few.for_learner(batch)
    assert len(few.learner) <= made + 1
    if len(few.learner) > made > 0:
      assert all(x >= y for smaller in few.learner[:-1] for x, y in zip(few.learner[-1], smaller))
    made = len(few.learner)
  assert made > 2


def test_shorter_batches_have_a_smaller_program_and_the_last_is_the_whole():
  few = tiny.sizes(most=4, width=ROOM)
  full = rollouts(np.full((16, 8), ROOM), longest=ROOM)
  few.for_learner(full)
  short = rollouts(np.full((16, 8), ROOM // 8), longest=ROOM)
  for _ in range(2):  # made, and taken again although the first would hold it
    assert few.for_learner(short)[1].token_index.shape[2] == few.learner[1].row_width < ROOM
  assert len(few.learner) == 2 and few.learner[1].cost < 0.3 * few.learner[0].cost
  one = tiny.sizes(most=1, width=ROOM)
  got, packing = one.for_learner(rollouts(np.full((16, 8), 2), longest=ROOM))
  assert packing == plan.Packing() and got.prompts.tokens.shape == (16, ROOM)


def test_a_batch_that_is_done_again_gets_the_program_that_it_made():
  for most in (2, 4, 8):
    few = tiny.sizes(most=most, width=ROOM)
    for batch in batches(60, growth=8.0):
      first = shapes(*few.for_learner(batch))
      assert shapes(*few.for_learner(batch)) == first


def test_a_run_that_goes_on_chooses_as_the_run_that_did_not_stop():
  whole = tiny.sizes(most=4, width=ROOM)
  stopped = tiny.sizes(most=4, width=ROOM)
  for step, batch in enumerate(batches(60)):
    if step == 30:
      saved = json.loads(json.dumps(stopped.get_state()))
      stopped = tiny.sizes(most=4, width=ROOM)
      stopped.set_state(saved)
    for one, other in (
      (whole.for_learner(batch), stopped.for_learner(batch)),
      (
        whole.for_sampler(batch.prompts, whole.layout),
        stopped.for_sampler(batch.prompts, stopped.layout),
      ),
    ):
      jax.tree.map(np.testing.assert_array_equal, one, other)
  assert len(whole.learner) > 1
  elsewhere = tiny.sizes((1, 2, 1, 1), 4, ROOM)
  elsewhere.set_state(whole.get_state())  # its lists are of other shards
  assert elsewhere.learner == []
  elsewhere.set_state({})  # a checkpoint from before there were sizes
  assert elsewhere.sampler == []


@pytest.mark.parametrize("most", [0, 4])
def test_programs_of_samples_that_have_begun_are_saved(most):
  """Of an older run, which has none saved, the others are restored."""
  whole, stopped = tiny.sizes(most=most, width=ROOM), tiny.sizes(most=most, width=ROOM)
  for step, batch in enumerate(batches(20, growth=8.0)):
    if step == 10:
      saved = json.loads(json.dumps(stopped.get_state()))
      stopped = tiny.sizes(most=most, width=ROOM)
      stopped.set_state(saved)
      assert stopped.begun == whole.begun != []
    both = (whole, stopped)
    pair = (few.for_begun(batch, few.layout) for few in both)
    jax.tree.map(np.testing.assert_array_equal, *pair)
    for few in both:
      few.for_learner(batch)
  assert whole.get_state() == stopped.get_state() and len(whole.begun) > 1
  old = {name: value for name, value in whole.get_state().items() if name != "begun"}
  again = tiny.sizes(most=most, width=ROOM)
  again.set_state(old)
  assert again.begun == [] and again.learner == whole.learner
  assert whole.fresh().begun == []


def test_a_batch_that_fits_no_program_takes_the_whole_rectangle(monkeypatch):
  """First-fit is no optimum: no wider rows were found that hold less, and none are known not to be."""
  monkeypatch.setattr(sizes, "holds", lambda *_: False)
  few = tiny.sizes(most=4, width=ROOM)
  batch = next(batches(1))
  assert few.for_learner(batch)[1] == plan.Packing()


def test_rows_that_a_program_has_are_enough():
  shape = sizes.Shape(prompts=2, width=8, group=8, length=64, shards=1, share=True)
  few = Sizes(4, tiny.layout(), 8, 1)
  rng = np.random.default_rng(0)
  for _ in range(200):
    lengths = rng.integers(0, int(rng.integers(2, 64)), (2, 8)).astype(np.int32)
    few.learner = few.learner[: int(rng.integers(0, 4))]
    got = few.for_learner(rollouts(lengths, longest=64))[1].token_index
    assert got is None or (got >= 0).sum() == lengths.sum()
    assert all(x <= y for program in few.learner for x, y in zip(program, shape.whole))
