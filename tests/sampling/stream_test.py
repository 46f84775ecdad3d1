"""A rollout that is read while it is sampled is the sampler's own, whatever is read of it and when."""

import jax
import numpy as np
import pytest
import tiny

from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import stream


def streamed(every, mesh=tiny.ONE):
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7)
  made = stream.make_stream(tiny.decoder(mesh=mesh), cfg, tiny.STOP)
  on_device = host.to_device(tiny.layout(mesh), tiny.prompts())
  return list(made(made.sampler.ready(tiny.params(mesh=mesh)), on_device, jax.random.key(0), every))


def same(found, whole):
  """Whether all that was sampled is that of the whole rollout; what is not sampled yet has no
  meaning.
  """
  np.testing.assert_array_equal(found.lengths, whole.lengths)
  np.testing.assert_array_equal(found.ended, whole.ended)
  real = tiny.real(whole)
  np.testing.assert_array_equal(found.tokens[real], whole.tokens[real])


@pytest.mark.slow
def test_it_grows_to_the_samplers_rollout():
  found, whole = streamed(3), tiny.sample()
  same(found[-1], whole)
  assert [int(each.lengths.max()) for each in found] == [
    1,
    4,
    7,
    8,
  ]  # the first token comes with the prompts
  real = tiny.real(whole)
  for each in found:
    here = real & (np.arange(tiny.L) < each.lengths[..., None])
    np.testing.assert_array_equal(each.tokens[here], whole.tokens[here])


@pytest.mark.slow
def test_several_devices_give_the_whole_at_once():
  found = streamed(3, mesh=(1, 2, 1, 1))
  assert len(found) == 1
  same(found[0], tiny.sample(mesh=(1, 2, 1, 1)))
