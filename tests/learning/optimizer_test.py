"""The optimizer against hand-made numbers: schedules, decay, clips, skipped updates, shardings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from grpo_jax.learning import optimizer, state
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


def test_an_update_in_which_nothing_was_taught_moves_nothing():
  """Neither by momentum nor by decay; and it is no update that was not finite."""
  tx = optimizer.make_optimizer(learner(lr=0.3, weight_decay=0.1), 10)
  first = state.create(params(), tx)
  ones = jax.tree.map(jnp.ones_like, params())
  moved, _ = update(tx, ones, jnp.zeros(()), first, True)
  bad, skipped = update(tx, ones, jnp.array(np.nan), moved, True)
  assert (int(bad.bad_steps), int(bad.skipped), int(skipped)) == (1, 1, 1)
  still, skipped = update(tx, jax.tree.map(jnp.zeros_like, ones), jnp.zeros(()), bad, False)
  jax.tree.map(np.testing.assert_array_equal, still, bad)
  assert skipped == 0 and still.step == moved.step == 1
  again, _ = update(tx, jax.tree.map(jnp.zeros_like, ones), jnp.zeros(()), bad, True)
  assert again.step == 2 and again.bad_steps == 0
  assert not np.array_equal(
    again.params["policy"]["embed"]["weight"], bad.params["policy"]["embed"]["weight"]
  )


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


def test_a_step_of_muon_is_nearly_orthogonal_in_each_layer_and_adamws_elsewhere():
  """Of G = U S V^T it takes nearly U V^T, in each matrix of a stack (Jordan et al. 2024)."""
  lr, start = 0.1, params()
  start["policy"]["layers"]["attention"]["q"]["weight"] = jnp.full((2, 3, 5), 2.0)
  grads = jax.tree.map(
    lambda x: jnp.asarray(np.random.default_rng(0).normal(size=x.shape), jnp.float32), start
  )
  moved = {}
  for name in ("muon", "adamw"):
    tx = optimizer.make_optimizer(learner(lr=lr, optimizer=name, clip_norm=0.0), 10)
    s, _ = update(tx, grads, jnp.float32(0), state.create(start, tx))
    moved[name] = jax.tree.map(lambda new, old: (old - new) / lr, s.params, start)["policy"]
  q = [each["layers"]["attention"]["q"].pop("weight") for each in moved.values()]
  jax.tree.map(np.testing.assert_array_equal, *moved.values())  # norms, biases, embeddings
  by_hand = grads["policy"]["layers"]["attention"]["q"]["weight"]
  for direction, g in zip(q[0] / (0.2 * 5**0.5), by_hand):  # by the longer side of 3 x 5
    u, _, v = np.linalg.svd(g, full_matrices=False)
    np.testing.assert_allclose(direction @ v.T @ v, direction, atol=1e-4)
    rotated = u.T @ direction @ v.T
    singular = np.diag(rotated)
    np.testing.assert_allclose(rotated, np.diag(singular), atol=1e-4)
    assert (0.6 < singular).all() and (singular < 1.3).all()


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


def test_the_norms_that_gradients_are_clipped_by_are_told_apart():
  """PPO's critic may have a huge gradient while the policy's is not clipped at all."""
  policy = {"a": jnp.array([0.3]), "b": jnp.array([0.4])}
  assert optimizer.norms({"policy": policy}) == {"grad_norm": pytest.approx(0.5)}
  found = optimizer.norms({"policy": policy, "critic": {"a": jnp.array([1000.0])}})
  assert found["grad_norm"] == pytest.approx(0.5) and found["critic_grad_norm"] == 1000


@pytest.fixture(scope="module")
def tx():
  return optimizer.make_optimizer(learner(lr=0.1, warmup=3, weight_decay=0.1), 10)
