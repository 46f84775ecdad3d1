"""A rollout that is read in parts is the sampler's own, on any mesh and with any number of slots."""

import jax
import numpy as np
import pytest
import tiny

from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler, stream
from grpo_jax.types import STOPPED

KEY = jax.random.key(0)


def drawn(every, mesh=tiny.ONE, slots=0):
  """Returns the parts of a rollout, and the whole one with its statistics."""
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7, slots=slots)
  sample = sampler.make_sampler(tiny.decoder(mesh=mesh), cfg, tiny.STOP)
  prompts, params = host.to_device(sample.layout, tiny.prompts()), tiny.params(mesh=mesh)
  parts = list(stream.parts(sample, sample.ready(params), prompts, KEY, every))
  return parts, *host.to_host(sample(params, prompts, KEY))


def check(parts, whole, statistics):
  """Compares the parts with the whole rollout: what they end with, and what is finished before."""
  assert [part.result is None for part in parts] == [True] * (len(parts) - 1) + [False]
  result, counts = host.to_host(parts[-1].result)
  assert counts == statistics
  for name in ("tokens", "lengths", "ended", "sampler_logprobs", "truncated_logprobs"):
    np.testing.assert_allclose(getattr(result, name), getattr(whole, name), rtol=2e-6)
  for part in parts:
    seen, real = part.seen, tiny.real(whole)
    here = real & (np.arange(tiny.L) < seen.lengths[..., None])
    np.testing.assert_array_equal(seen.tokens[here], whole.tokens[here])
    done = seen.finished
    np.testing.assert_array_equal(seen.lengths[done], whole.lengths[done])
    np.testing.assert_array_equal(seen.ended[done], whole.ended[done])
    assert not ((seen.lengths == whole.lengths) & (whole.lengths > 0) & ~done).any()
  assert parts[-1].seen.finished.all()


@pytest.mark.slow
def test_it_grows_to_the_samplers_rollout():
  parts, whole, statistics = drawn(3)
  check(parts, whole, statistics)
  # the first token comes with the prompts
  assert [int(part.seen.lengths.max()) for part in parts] == [1, 4, 7, 8]
  assert (whole.ended == STOPPED).any()
  assert 0 < parts[1].seen.finished.sum() < parts[2].seen.finished.sum()


@pytest.mark.parametrize("mesh, slots", [(tiny.ONE, 5), ((1, 2, 1, 2), 6), ((2, 1, 2, 1), 0)])
def test_shards_and_refilled_slots_are_as_in_one_program(mesh, slots):
  check(*drawn(4, mesh, slots))


def test_what_is_watched_is_what_the_sampler_returns():
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7)
  sample = sampler.make_sampler(tiny.decoder(), cfg, tiny.STOP)
  prompts, seen = host.to_device(sample.layout, tiny.prompts()), []
  found, _ = stream.watched(sample, sample.ready(tiny.params()), prompts, KEY, seen.append)
  np.testing.assert_array_equal(found.tokens, sample(tiny.params(), prompts, KEY)[0].tokens)
  assert len(seen) == 2 and seen[-1].finished.all() and not seen[0].finished.all()


def test_short_turns_of_long_completions_are_seen_before_the_longest_one_ends():
  sample = tiny.make_sampler(max_length=2048, stop=(0,))
  prompts, seen = host.to_device(sample.layout, tiny.prompts()), []
  found, _ = stream.watched(sample, sample.ready(tiny.params()), prompts, KEY, seen.append)
  steps = [int(each.lengths.max()) - 1 for each in seen]  # after the prompts
  assert steps[:4] == [0, 16, 48, 112] and max(np.diff(steps)) == 64  # 32 parts or so
  finished = [int(each.finished.sum()) for each in seen]
  assert finished[0] < finished[1] < finished[2] < finished[-1] == found.lengths.size
