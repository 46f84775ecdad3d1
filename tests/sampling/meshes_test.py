"""What each shard of a mesh is given: its prompts and samples, and whole weights."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from grpo_jax.sampling import meshes, sampler


def setup(mesh):
  cfg = tiny.section("sampler", group=4, max_length=tiny.L)
  return sampler.make_setup(tiny.decoder(mesh=mesh), cfg, tiny.STOP)


def test_a_function_runs_in_every_shard_and_its_results_are_joined():
  values = jnp.arange(4 * 4).reshape(4, 4)  # [P, G]
  of_mesh = setup((1, 2, 2, 1))
  specs = meshes.specs(of_mesh)

  def run(weight, values):
    assert weight.shape == (3,) and values.shape == (2, 2)
    return values * weight.sum(), values.sum()[None]

  found, sums = jax.jit(
    meshes.on_mesh(of_mesh, run, (specs.whole, specs.samples), (specs.samples, specs.shard))
  )(jnp.ones(3), values)
  np.testing.assert_array_equal(found, 3 * values)
  # the shards of prompts come first, then those of samples
  np.testing.assert_array_equal(sums, [0 + 1 + 4 + 5, 2 + 3 + 6 + 7, 42, 50])


def test_one_device_runs_the_function_as_it_is():
  def run(x):
    return x

  assert meshes.on_mesh(setup(tiny.ONE), run, (), ()) is run
