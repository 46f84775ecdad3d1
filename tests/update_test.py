"""What must not change an update by other objectives than GRPO: microbatches, packing, the mesh (GRPO: learn_test.py).

The learner is the real one, compiled for each way. Its model is a table of bigrams, which compiles in no time; the
decoder has its turn with a critic of its own shape beside it.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tiny
from learn_test import Bigrams, norm, table

from grpo_jax import learn
from grpo_jax import rollouts as host
from grpo_jax import state as states
from grpo_jax.objectives import gspo, ppo
from grpo_jax.types import Packing, Rollouts

OBJECTIVES = {
  "gspo": (gspo, {"beta": 0.1, "clip_low": 0.05, "clip_high": 0.05}),
  "ppo": (ppo, {"beta": 0.1}),
  "ppo without a KL": (ppo, {}),
}
TX = optax.sgd(0.1)


@functools.cache
def rollouts() -> Rollouts:
  """The tiny ones, each completion with a reward of its own but for one group of equal ones."""
  r = tiny.rollouts()
  reward = np.random.default_rng(4).random(r.lengths.shape, np.float32)
  reward[2] = 0.7
  return dataclasses.replace(r, rewards=np.where(r.given, reward[..., None], 0))


def trees(objective: Any, policy: Any, width: int) -> tuple[dict, Any, Any]:
  """Numpy: what is trained, a reference, and an old policy; all differ."""
  rng = np.random.default_rng(3)
  other = lambda: jax.tree.map(lambda x: (x + 0.1 * np.abs(x).mean() * rng.normal(size=x.shape)).astype("f"), policy)
  head = {"weight": 0.3 * rng.normal(size=(1, width)).astype("f"), "bias": np.ones(1, "f")}
  critic = {"critic": other() | {"value_head": head}} if objective is ppo else {}
  return {"policy": policy} | critic, other(), other()


@functools.cache
def updated(
  name: str, model: str = "bigrams", mesh: tuple[int, ...] = tiny.ONE, packed: bool = False, microbatch: int = 0
) -> tuple[Any, Any, dict, learn.Trace]:
  """One update by plain gradient descent: (parameters before, parameters after, metrics, trace), numpy."""
  objective, changes = OBJECTIVES[name]
  layout, r = tiny.layout(mesh), rollouts()
  if model == "bigrams":
    decoder, shardings, (params, ref, old) = Bigrams(layout), {}, trees(objective, table(), 8)
  else:
    decoder = tiny.decoder(mesh=mesh)
    shardings, (params, ref, old) = decoder.shardings(), trees(objective, tiny.weights(), decoder.config.width)
  place = lambda tree: {k: jax.device_put(x, shardings.get(k, layout.replicated())) for k, x in tree.items()}
  cfg = tiny.section("learner", chunk=64, microbatch=microbatch)
  packing = tiny.packing(r.lengths, mesh, learn.parts(cfg, tiny.P)) if packed else Packing()
  run = learn.make_learn(decoder, objective, TX, cfg, tiny.objective(**changes), 0.7)
  state = states.create({k: place(tree) for k, tree in params.items()}, TX)
  given = host.to_device(layout, (r, packing))
  state, metrics, trace = run(state, place(ref) if "beta" in changes else None, place(old), *given)
  return params, *jax.device_get((state.params, metrics, trace))


def assert_same(name: str, model: str, mesh: tuple[int, ...], packed: bool, microbatch: int) -> None:
  """The same as without a mesh, packing and microbatches, where parameters move and ratios are not 1."""
  before, after, metrics, trace = updated(name, model)
  for tree in after:
    assert norm(jax.tree.map(np.subtract, after[tree], before[tree])) > 0.01
  assert metrics["ratio_max"] > 1.2 and metrics["clip_low"] > 0 and metrics["clip_high"] > 0
  _, got, got_metrics, got_trace = updated(name, model, mesh, packed, microbatch)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6), got, after)
  assert got_metrics.keys() == metrics.keys()
  for key in metrics:
    np.testing.assert_allclose(got_metrics[key], metrics[key], rtol=1e-5, atol=1e-5, err_msg=key)
  np.testing.assert_allclose(got_trace.advantages, trace.advantages, atol=1e-5)
  real = tiny.real(rollouts())
  np.testing.assert_allclose(got_trace.logprobs[real], trace.logprobs[real], atol=1e-5)


@pytest.mark.parametrize(
  "name, mesh, packed, microbatch",
  [
    ("gspo", tiny.ONE, False, 1),
    ("gspo", (2, 2, 2, 1), True, 4),
    ("ppo", tiny.ONE, False, 2),
    ("ppo", tiny.ONE, True, 1),
    ("ppo", (1, 2, 4, 1), False, 2),
  ],
)
def test_microbatches_packing_and_the_mesh_change_nothing(name, mesh, packed, microbatch):
  assert_same(name, "bigrams", mesh, packed, microbatch)


def test_the_mesh_changes_nothing_where_the_decoder_has_a_critic_beside_it():
  assert_same("ppo without a KL", "decoder", (1, 2, 2, 2), True, 0)
