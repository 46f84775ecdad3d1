"""The optimizer against hand-made numbers: schedules, decay, clips, skipped updates, shardings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from grpo_jax.learning import learn, optimizer, state
from grpo_jax.setup import defaults

POLICY = {
  "embed": {"weight": np.full((4, 3), 2.0, np.float32)},
  "layers": {
    "attention": {
      "q": {
        "weight": np.full((2, 3, 3), 2.0, np.float32),
        "bias": np.full((2, 3), 2.0, np.float32),
      },
      "q_norm": {"scale": np.full((2, 3), 2.0, np.float32)},
    },
    "input_norm": {"scale": np.full((2, 3), 2.0, np.float32)},
  },
  "final_norm": {"scale": np.full((3,), 2.0, np.float32)},
  "other_norm": {"weight": np.full((2, 3), 2.0, np.float32)},
}


update = jax.jit(optimizer.apply_if_finite, static_argnums=0)


def learner(**settings) -> ConfigDict:
  cfg = defaults.get_config().learner
  with cfg.unlocked():
    cfg.update(settings)
  return cfg


def params() -> dict:
  return {"policy": jax.tree.map(jnp.asarray, POLICY)}


def equal(a, b) -> bool:
  """Bitwise, NaNs and signs of zeros included."""
  return jax.tree.structure(a) == jax.tree.structure(b) and all(
    np.asarray(x).tobytes() == np.asarray(y).tobytes()
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
  )


@pytest.mark.parametrize(
  "name,expected",
  [
    ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]),
    ("linear", [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4, 0, 0]),
    ("cosine", [1 / 3, 2 / 3, 1, 0.853553, 0.5, 0.146447, 0, 0]),
  ],
)
def test_schedule(name, expected):
  rate = optimizer.schedule(learner(lr=0.3, warmup=2, schedule=name), total_updates=6)
  np.testing.assert_allclose(
    [rate(i) for i in range(len(expected))], 0.3 * np.array(expected), rtol=1e-5, atol=1e-8
  )


def test_a_run_that_makes_fewer_updates_ends_above_0():
  """The schedule goes by updates that were made: one that was skipped leaves the rate where it was."""
  rate = optimizer.schedule(learner(lr=0.3, schedule="linear"), total_updates=4)
  tx = optax.scale_by_learning_rate(rate)
  now = state.create({"policy": {"w": jnp.ones(1)}}, tx)
  moved = []
  for gradient in (1.0, np.nan, 1.0, 1.0):
    before = now.params["policy"]["w"][0]
    now, _ = update(tx, {"policy": {"w": jnp.array([gradient])}}, jnp.zeros(()), now)
    moved.append(float(before - now.params["policy"]["w"][0]))
  np.testing.assert_allclose(moved, [0.3, 0, 0.225, 0.15], rtol=1e-5)


def test_schedule_without_warmup_starts_at_its_peak():
  assert optimizer.schedule(learner(lr=0.3, schedule="linear"), total_updates=2)(0) == np.float32(
    0.3
  )


def test_decay_acts_on_matrices_by_name_and_not_by_rank():
  lr, decay = 0.1, 0.5
  tx = optimizer.make_optimizer(learner(lr=lr, weight_decay=decay), 10)
  s = state.create(params(), tx)
  s, _ = update(tx, jax.tree.map(jnp.zeros_like, s.params), jnp.float32(0), s)
  new = s.params["policy"]
  shrunk, kept = 2 - lr * decay * 2, 2
  np.testing.assert_allclose(new["embed"]["weight"], shrunk)
  np.testing.assert_allclose(new["layers"]["attention"]["q"]["weight"], shrunk)
  np.testing.assert_array_equal(new["layers"]["attention"]["q"]["bias"], kept)
  np.testing.assert_array_equal(new["layers"]["attention"]["q_norm"]["scale"], kept)
  np.testing.assert_array_equal(new["layers"]["input_norm"]["scale"], kept)
  np.testing.assert_array_equal(new["final_norm"]["scale"], kept)
  np.testing.assert_array_equal(new["other_norm"]["weight"], kept)


def test_two_steps_of_adamw_by_hand():
  cfg = learner(lr=0.1, b1=0.8, b2=0.9, adam_eps=1e-3, weight_decay=0.2, clip_norm=0.0)
  tx = optimizer.make_optimizer(cfg, 10)
  s = state.create({"policy": {"weight": jnp.array([[1.0, -2.0]])}}, tx)
  p, m, v = np.array([[1.0, -2.0]]), np.zeros((1, 2)), np.zeros((1, 2))
  for t, g in enumerate((np.array([[3.0, -0.5]]), np.array([[-1.0, 4.0]])), start=1):
    s, skipped = update(tx, {"policy": {"weight": jnp.asarray(g, jnp.float32)}}, jnp.float32(0), s)
    m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
    p = p - 0.1 * (m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3) + 0.2 * p)
    assert skipped == 0 and s.step == t
  np.testing.assert_allclose(s.params["policy"]["weight"], p, rtol=1e-5)


@pytest.mark.parametrize("norm,factor", [(1.0, 1 / 5), (5.5, 1.0), (0.0, 1.0)])
def test_gradient_is_clipped_by_its_global_norm(norm, factor):
  tx = optimizer.make_optimizer(learner(clip_norm=norm), 10)
  p = {"policy": {"a": jnp.zeros(1), "b": jnp.zeros(1)}}
  _, opt_state = tx.update(
    {"policy": {"a": jnp.array([3.0]), "b": jnp.array([-4.0])}}, tx.init(p), p
  )
  mu = optax.tree_utils.tree_get(opt_state, "mu")["policy"]  # (1 - b1) times the clipped gradient
  np.testing.assert_allclose([mu["a"][0], mu["b"][0]], np.array([3, -4]) * 0.1 * factor, rtol=1e-5)


def test_a_clipped_gradient_keeps_its_dtype():
  clipped = optimizer.clip(1.0, {"a": jnp.array([3.0], jnp.bfloat16), "b": jnp.array([4.0])}, None)
  assert clipped["a"].dtype == jnp.bfloat16 and clipped["b"].dtype == jnp.float32
  np.testing.assert_allclose(clipped["a"].astype(jnp.float32), 0.6, rtol=2**-7)
  np.testing.assert_allclose(clipped["b"], 0.8, rtol=1e-6)


def test_critic_has_its_own_rate_and_clip():
  tx = optimizer.make_optimizer(
    learner(lr=0.1, critic_lr=0.01, clip_norm=1.0, adam_eps=0.0), 10, critic=True
  )
  s = state.create({"policy": {"a": jnp.zeros(1)}, "critic": {"a": jnp.zeros(1)}}, tx)
  grads = {"policy": {"a": jnp.array([0.5])}, "critic": {"a": jnp.array([1000.0])}}
  s, _ = update(tx, grads, jnp.float32(0), s)
  np.testing.assert_allclose(s.params["policy"]["a"], -0.1, rtol=1e-5)
  np.testing.assert_allclose(s.params["critic"]["a"], -0.01, rtol=1e-5)
  mu = s.opt_state.inner_states["policy"].inner_state[1].mu
  # the critic's norm does not shrink it
  np.testing.assert_allclose(mu["policy"]["a"], 0.05, rtol=1e-5)


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


def test_state_can_be_donated_and_abstract_is_what_create_makes():
  tx = optimizer.make_optimizer(learner(weight_decay=0.1), 10)
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
def test_moments_take_the_shardings_of_their_parameters(critic):
  mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
  cut, whole = (
    NamedSharding(mesh, PartitionSpec("fsdp", "tensor")),
    NamedSharding(mesh, PartitionSpec()),
  )
  weight, scale = jax.device_put(jnp.ones((8, 8)), cut), jax.device_put(jnp.ones((2, 8)), whole)
  p = {"policy": {"weight": weight, "norm": {"scale": scale}}} | (
    {"critic": {"weight": weight}} if critic else {}
  )
  tx = optimizer.make_optimizer(learner(weight_decay=0.1, critic_lr=1e-3), 10, critic=critic)
  s = state.create(p, tx)
  leaves = jax.tree.leaves((s.opt_state, s.step, s.bad_steps, s.skipped))
  assert all(leaf.sharding == (cut if leaf.shape == (8, 8) else whole) for leaf in leaves)
  assert [leaf.shape for leaf in leaves].count((8, 8)) == (4 if critic else 2)
