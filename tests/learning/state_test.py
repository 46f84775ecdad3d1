"""What an update changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from optimizer_test import learner, params, update

from grpo_jax.learning import learn, optimizer, state


def equal(a, b) -> bool:
  """Bitwise, NaNs and signs of zeros included."""
  return jax.tree.structure(a) == jax.tree.structure(b) and all(
    np.asarray(x).tobytes() == np.asarray(y).tobytes()
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
  )


@pytest.fixture(scope="module")
def tx():
  return optimizer.make_optimizer(learner(lr=0.1, warmup=3, weight_decay=0.1), 10)


@pytest.mark.parametrize(
  "loss,entry", [(np.nan, 1.0), (np.inf, 1.0), (0.0, np.nan), (0.0, -np.inf), (0.0, 1e30)]
)
def test_a_bad_update_changes_nothing_and_is_counted(loss, entry, tx):
  good = jax.tree.map(jnp.ones_like, params())
  bad = jax.tree.map(jnp.ones_like, params())
  bad["policy"]["final_norm"]["scale"] = bad["policy"]["final_norm"]["scale"].at[1].set(entry)
  before, _ = update(tx, good, jnp.float32(0), state.create(params(), tx))
  once, skipped = update(tx, bad, jnp.float32(loss), before)
  twice, _ = update(tx, bad, jnp.float32(loss), once)
  assert skipped == 1
  assert equal(
    (twice.params, twice.opt_state, twice.step), (before.params, before.opt_state, before.step)
  )
  assert (once.bad_steps, twice.bad_steps, twice.skipped) == (1, 2, 2)
  after, skipped = update(tx, good, jnp.float32(0), twice)
  expected, _ = update(tx, good, jnp.float32(0), before)
  assert (skipped, after.bad_steps, after.skipped, after.step) == (0, 0, 2, 2)
  assert equal((after.params, after.opt_state), (expected.params, expected.opt_state))
  assert not equal(after.params, before.params)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_can_be_donated_and_abstract_is_what_create_makes(name):
  tx = optimizer.make_optimizer(learner(weight_decay=0.1, optimizer=name), 10)
  s = state.create(params(), tx)
  described = state.abstract(params(), tx)
  assert jax.tree.structure(s) == jax.tree.structure(described)
  assert all(
    (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
    for a, b in zip(jax.tree.leaves(s), jax.tree.leaves(described))
  )
  step = jax.jit(
    lambda s: optimizer.apply_if_finite(tx, s.params, jnp.float32(0), s)[0], donate_argnums=0
  )
  s = step(step(s))
  assert s.step == 2 and s.skipped == 0


@pytest.mark.parametrize(
  "dropped", ["xla_cpu_copy_insertion_use_region_analysis", "xla_cpu_scheduler_type"]
)
def test_an_update_on_a_cpu_makes_one_array_at_a_time(dropped):
  leaf = jnp.zeros((256, 256))
  tx = optimizer.make_optimizer(learner(weight_decay=0.1), 10)
  s = state.create(
    {"policy": {"a": {"weight": leaf}, "b": {"weight": leaf}, "c": {"weight": leaf}}}, tx
  )
  options = learn.compiler_options(tiny.decoder())

  def temporary(options):
    step = jax.jit(
      functools.partial(optimizer.apply_if_finite, tx), donate_argnums=2, compiler_options=options
    )
    return step.lower(s.params, jnp.float32(0), s).compile().memory_analysis().temp_size_in_bytes

  assert temporary(options) < 1.1 * leaf.nbytes
  assert (
    temporary({name: value for name, value in options.items() if name != dropped}) > 2 * leaf.nbytes
  )


@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_take_the_shardings_of_their_parameters(name, critic):
  mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
  cut, whole = (
    NamedSharding(mesh, PartitionSpec("fsdp", "tensor")),
    NamedSharding(mesh, PartitionSpec()),
  )
  weight, scale = jax.device_put(jnp.ones((8, 8)), cut), jax.device_put(jnp.ones((2, 8)), whole)
  tree = {"layers": {"weight": weight}}
  p = {"policy": tree | {"norm": {"scale": scale}}} | ({"critic": tree} if critic else {})
  cfg = learner(weight_decay=0.1, critic_lr=1e-3, optimizer=name)
  tx = optimizer.make_optimizer(cfg, 10, critic=critic)
  s = state.create(p, tx)
  leaves = jax.tree.leaves((s.opt_state, s.step, s.bad_steps, s.skipped))
  assert all(leaf.sharding == (cut if leaf.shape == (8, 8) else whole) for leaf in leaves)
  moments = {"adamw": 2, "muon": 1}[name]
  assert [leaf.shape for leaf in leaves].count((8, 8)) == (2 * moments if critic else moments)
