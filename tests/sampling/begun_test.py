"""Samples that have begun go on as if nothing had interrupted them."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import begun, kv_cache
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling.begun import Begun, Carried
from grpo_jax.types import STOPPED, TRUNCATED, Rollouts


def cut(r: Rollouts, cuts: np.ndarray, limits: np.ndarray | int = tiny.L) -> Begun[np.ndarray]:
  """The first `cuts [P, G]` tokens of each sample, unfinished where it had more."""
  lengths = np.minimum(r.lengths, cuts).astype(np.int32)
  tokens = np.where(np.arange(tiny.L) < lengths[..., None], r.tokens, 0).astype(np.int32)
  return Begun(
    tokens,
    lengths,
    (r.lengths > lengths) & (r.lengths > 0),
    np.broadcast_to(np.int32(limits), lengths.shape),
    np.zeros(lengths.shape, np.int32),
  )


def packed(r: Rollouts, some: Begun[np.ndarray], mesh: tuple[int, ...]) -> Begun[np.ndarray]:
  """The same with rows and lists."""
  packing = plan.pack(
    dataclasses.replace(r, tokens=some.tokens, lengths=some.lengths), tiny.layout(mesh)
  )
  return dataclasses.replace(some, packing=packing)


def go_on(
  r: Rollouts,
  some: Begun[np.ndarray],
  mesh: tuple[int, ...] = tiny.ONE,
  variant: str = "test_qwen3",
  **changes: Any,
) -> Rollouts:
  """Continues begun samples under the key of `tiny.sample(0)`."""
  make = tiny.make_sampler(variant, mesh, **changes)
  prompts, on_mesh = host.to_device(make.layout, (r.prompts, some))
  out, _ = make(tiny.params(variant, mesh), prompts, jax.random.key(0), begun=on_mesh)
  return host.to_host(out)


def assert_continued(got: Rollouts, whole: Rollouts, some: Begun[np.ndarray]) -> None:
  """Unfinished samples end as the whole ones; log-probs are those of the new tokens, 0 before."""
  left = some.unfinished
  np.testing.assert_array_equal(got.lengths, np.where(left, whole.lengths, 0))
  np.testing.assert_array_equal(got.ended[left], whole.ended[left])
  place = np.arange(tiny.L)
  inside = left[..., None] & (place < whole.lengths[..., None])
  np.testing.assert_array_equal(got.tokens[inside], whole.tokens[inside])
  new = inside & (place >= some.lengths[..., None])
  for name in ("sampler_logprobs", "truncated_logprobs"):
    own, want = getattr(got, name), getattr(whole, name)
    np.testing.assert_allclose(own[new], want[new], atol=3e-5, rtol=0)
    assert not own[left][~(place >= some.lengths[..., None])[left]].any()


def random_cuts(seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, tiny.L, (tiny.P, tiny.G))


@pytest.mark.parametrize("slots", [0, 5])
def test_every_cut_of_a_sample_goes_on_as_the_whole(slots):
  """All samples cut at one place, then each at another: fresh ones and finished ones among them."""
  whole = tiny.sample()
  for cuts in [*(np.full((tiny.P, tiny.G), n) for n in range(tiny.L)), random_cuts(0)]:
    some = cut(whole, cuts)
    if some.unfinished.any():
      assert_continued(go_on(whole, some, slots=slots), whole, some)


@pytest.mark.parametrize("slots", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_many_samples_cut_anywhere_go_on_as_the_whole(slots):
  """More than five hundred, in rows and lists; the ring of three slots is written over many times."""
  whole, in_rows, in_lists = tiny.sample(), 0, 0
  for seed in range(10):  # of 56 samples each
    some = packed(whole, cut(whole, random_cuts(seed) // 2), tiny.ONE)
    in_rows += some.packing.token_index is not None
    in_lists += some.packing.list_size is not None
    assert_continued(go_on(whole, some, slots=slots), whole, some)
  assert in_rows and in_lists


@pytest.mark.parametrize("variant", ["test_windows", "test_gemma"])
def test_windows_go_on_across_the_cut(variant):
  whole = tiny.sample(variant=variant)
  some = cut(whole, random_cuts(1))
  assert_continued(go_on(whole, some, variant=variant, slots=5), whole, some)


@pytest.mark.parametrize("slots", [0, 5])
def test_blocks_of_the_ring_hold_begun_samples(slots, monkeypatch):
  whole = tiny.sample()
  monkeypatch.setattr(kv_cache, "LEAST_COLUMNS", 2)
  monkeypatch.setattr(tiny, "make_sampler", tiny.make_sampler.__wrapped__)
  for seed in range(2):
    some = cut(whole, random_cuts(seed))
    assert_continued(go_on(whole, some, slots=slots), whole, some)


@pytest.mark.parametrize("mesh, slots", [((1, 2, 2, 1), 0), ((1, 2, 2, 2), 5)])
def test_the_mesh_does_not_change_how_a_sample_goes_on(mesh, slots):
  whole = tiny.sample()
  some = packed(whole, cut(whole, random_cuts(2) // 2), mesh)
  assert_continued(go_on(whole, some, mesh, slots=slots), whole, some)


def test_a_cache_of_int8_holds_begun_samples():
  """Log-probs near those of a sample that was not interrupted; both caches are rounded."""
  whole = tiny.sample(cache_dtype="int8")
  some = cut(whole, np.full((tiny.P, tiny.G), 1))
  got = go_on(whole, some, cache_dtype="int8", slots=5)
  first = np.arange(tiny.L) == 1
  same = some.unfinished[..., None] & first & (got.tokens == whole.tokens)
  assert same.sum() > 20
  error = np.abs(got.sampler_logprobs - whole.sampler_logprobs)[same]
  assert error.max() < 0.1


def test_a_limit_truncates_a_sample():
  whole = tiny.sample()
  lengths = np.minimum(whole.lengths, 2)
  some = cut(whole, np.full((tiny.P, tiny.G), 2), limits=lengths + 3)
  got, left = go_on(whole, some, slots=5), some.unfinished
  want = np.minimum(whole.lengths, 5)
  np.testing.assert_array_equal(got.lengths[left], want[left])
  stopped = (whole.ended == STOPPED) & (whole.lengths <= 5)
  np.testing.assert_array_equal(got.ended[left], np.where(stopped, STOPPED, TRUNCATED)[left])
  assert (got.lengths[left] == 5).any() and (got.lengths[left] < 5).any()


def test_tokens_that_nobody_sampled_are_read():
  """A sample that goes on after other tokens has the learner's log-probs of what follows."""
  whole = tiny.sample()
  some = cut(whole, np.full((tiny.P, tiny.G), 3))
  other = np.where(np.arange(tiny.L) == 1, (some.tokens + 1) % tiny.V, some.tokens)
  got = go_on(whole, dataclasses.replace(some, tokens=other.astype(np.int32)), slots=5)
  learned, *_ = tiny.logprobs()(tiny.weights(), got.prompts, got.tokens, got.lengths, Packing())
  place = np.arange(tiny.L)
  new = (place >= some.lengths[..., None]) & (place < got.lengths[..., None])
  assert (got.tokens != whole.tokens)[new].any()
  np.testing.assert_allclose(got.sampler_logprobs[new], np.asarray(learned)[new], atol=3e-5)


def test_columns_of_the_ring_are_those_before_the_next_step():
  """The picture at the head of begun.py."""
  kv = np.arange(2 * 1 * 1 * 4, dtype=np.float32).reshape(2, 1, 1, 4)  # row, K, d, T
  stored = kv_cache.StoredKV(
    kv_cache.Stored(kv, None), kv_cache.Stored(np.moveaxis(kv, 2, 3), None)
  )
  rows = begun.BegunRows(
    cache=[stored],
    row=np.array([0, 1]),
    start=np.array([0, 1]),
    tokens=np.zeros((2, 6), np.int32),
    lengths=np.array([0, 3]),
    limits=np.array([6, 6]),
    matched=np.array([0, 0]),
    unfinished=np.array([True, True]),
  )
  ((first, second),) = begun.ring(rows, ((0, 3), (3, 6)), np.int32(1), np.int32(8))
  keys = np.concatenate([first.keys.x, second.keys.x], axis=3).reshape(-1)
  np.testing.assert_array_equal(keys[[5, 0, 1]], kv[1, 0, 0, 1:4])
  values = np.concatenate([first.values.x, second.values.x], axis=2).reshape(-1)
  np.testing.assert_array_equal(values, keys)


def in_parts(
  mesh: tuple[int, ...], due: np.ndarray | None = None, **changes: Any
) -> list[tuple[Rollouts, Begun[np.ndarray], int]]:
  """Rollouts of the tiny prompts that leave groups to the next, until all are complete.

  Each with what had begun before it, and its decoding steps.
  """
  make = tiny.make_sampler(mesh=mesh, **changes)
  r, parts = dataclasses.replace(tiny.sample(), lengths=np.zeros((tiny.P, tiny.G), np.int32)), []
  real = tiny.prompts().lengths > 0
  some = dataclasses.replace(cut(r, np.zeros((tiny.P, tiny.G), int)))
  some = dataclasses.replace(some, unfinished=np.repeat(real[:, None], tiny.G, axis=1))
  numbers = np.arange(tiny.P, dtype=np.int32)
  while some.unfinished.any():
    order = Carried(numbers, np.zeros(tiny.P, bool) if due is None else due)
    given = host.to_device(make.layout, (r.prompts, packed(r, some, mesh), order))
    out, statistics = make(
      tiny.params(mesh=mesh), given[0], jax.random.key(0), begun=given[1], carried=given[2]
    )
    out = host.to_host(out)
    parts.append((out, some, int(statistics["decode_steps"])))
    left = some.unfinished & (out.ended == TRUNCATED) & (out.lengths < tiny.L)
    new = some.unfinished[..., None]
    lengths = np.where(some.unfinished, out.lengths, some.lengths)
    some = dataclasses.replace(
      some, tokens=np.where(new, out.tokens, some.tokens), lengths=lengths, unfinished=left
    )
    r = dataclasses.replace(r, tokens=some.tokens, lengths=lengths)
    assert len(parts) <= tiny.P
  return parts


@pytest.mark.parametrize("mesh, slots", [(tiny.ONE, 0), (tiny.ONE, 5), ((2, 1, 1, 2), 6)])
def test_what_a_rollout_leaves_is_continued_as_the_whole(mesh, slots):
  """Two groups of a shard may be left; each part ends as soon as the others are complete."""
  whole, shards = tiny.sample(), mesh[0]
  parts = in_parts(mesh, carry=2 * shards, slots=slots)
  last, before, _ = parts[-1]
  left = [(some.unfinished.any(axis=1)).sum() for _, some, _ in parts]
  assert (
    len(parts) > 1 and all(0 < n <= 2 * shards for n in left[1:]) and left == sorted(left)[::-1]
  )
  if not slots:  # one step for each token after the first, of all groups but the two longest
    assert parts[0][2] == np.sort(whole.lengths.max(axis=1))[-3] - 1
  for part, some, _ in parts:
    inside = some.unfinished[..., None] & (np.arange(tiny.L) < part.lengths[..., None])
    np.testing.assert_array_equal(part.tokens[inside], whole.tokens[inside])
  np.testing.assert_array_equal(last.lengths[before.unfinished], whole.lengths[before.unfinished])


def test_a_rollout_waits_for_what_is_due():
  whole = tiny.sample()
  longest = np.unravel_index(whole.lengths.argmax(), whole.lengths.shape)[0]
  due = np.arange(tiny.P) == longest
  first, _, steps = in_parts(tiny.ONE, due, carry=2)[0]
  np.testing.assert_array_equal(first.lengths[longest], whole.lengths[longest])
  assert steps == whole.lengths.max() - 1 > in_parts(tiny.ONE, carry=2)[0][2]


def test_the_prompts_after_those_that_have_begun_are_fresh():
  """Of two shards each has begun samples of its first two prompts."""
  mesh, whole = (2, 1, 1, 2), tiny.sample()
  first = np.array([0, 1, 4, 5])
  some = jax.tree.map(lambda x: x[first], cut(whole, random_cuts(3) // 2))
  r = dataclasses.replace(
    whole,
    prompts=jax.tree.map(lambda x: x[first], whole.prompts),
    tokens=some.tokens,
    lengths=some.lengths,
  )
  some = dataclasses.replace(some, packing=plan.pack(r, tiny.layout(mesh)))
  got = go_on(whole, some, mesh, slots=6)
  fresh = np.setdiff1d(np.arange(tiny.P), first)
  np.testing.assert_array_equal(got.lengths[fresh], whole.lengths[fresh])
  inside = np.arange(tiny.L) < whole.lengths[..., None]
  np.testing.assert_array_equal(
    got.tokens[fresh][inside[fresh]], whole.tokens[fresh][inside[fresh]]
  )
  got_first, whole_first = (jax.tree.map(lambda x: x[first], x) for x in (got, whole))
  assert_continued(got_first, whole_first, some)
