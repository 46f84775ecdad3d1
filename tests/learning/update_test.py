"""What must not change an update by any objective: microbatches, packing, the mesh.

The learner is the real one, compiled for each way. Its model is a table of bigrams, which compiles
in no time; the decoder has its turn in learn_test.py, and here with a critic of its own shape
beside it.
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
from objective_cases import CASES, PAIRS, PROCESS

from grpo_jax.learning import learn, passes
from grpo_jax.learning.state import create
from grpo_jax.objectives import ppo
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts as host
from grpo_jax.types import Rollouts

EVERY = (
  *(
    "grpo",
    "grpo process",
    "gspo",
    "gspo_token",
    "cispo",
    "rpg forward",
    "ppo",
    "ppo group",
    "target_prob",
  ),
  *("sapo", "gmpo", "dppo", "vespo", "kimi", "clip_cov", "kl_cov", "tpo"),
  *("otb", "grpo entropy", "grpo live", "ppo vapo"),
  *("sft", "rft", "dpo", "distill", "distill_offline", "gkd", "gkd top"),
)
OBJECTIVES = CASES | {"ppo without a KL": (ppo, {})}
TX = optax.sgd(0.1)


@functools.cache
def rollouts(name: str) -> Rollouts:
  """The tiny ones, each completion with rewards of its own but for one group of equal ones and an
  empty one.
  """
  r = tiny.rollouts()
  if name in PAIRS:
    r = jax.tree.map(lambda x: x[:, :2] if x.ndim > 1 and x.shape[1] == tiny.G else x, r)
  rng = np.random.default_rng(4)
  given = (
    r.given | tiny.real(r) & (rng.random(r.tokens.shape) < 0.4) if name in PROCESS else r.given
  )
  reward = rng.random(r.tokens.shape, np.float32)
  reward[2] = 0.7
  return dataclasses.replace(r, rewards=np.where(given, reward, 0), given=given)


def trees(objective: Any, policy: Any, width: int) -> tuple[dict, Any, Any]:
  """Numpy: what is trained, a reference, and an old policy; all differ."""
  rng = np.random.default_rng(3)

  def other():
    return jax.tree.map(
      lambda x: (x + 0.1 * np.abs(x).mean() * rng.normal(size=x.shape)).astype("f"), policy
    )

  head = {"weight": 0.3 * rng.normal(size=(1, width)).astype("f"), "bias": np.ones(1, "f")}
  critic = {"critic": other() | {"value_head": head}} if objective is ppo else {}
  return {"policy": policy} | critic, other(), other()


@functools.cache
def updated(
  name: str,
  model: str = "bigrams",
  mesh: tuple[int, ...] = tiny.ONE,
  packed: bool = False,
  microbatch: int = 0,
) -> tuple[Any, Any, dict, learn.Trace]:
  """One update by plain gradient descent: (parameters before, parameters after, metrics, trace),
  numpy.
  """
  objective, changes = OBJECTIVES[name]
  layout, r = tiny.layout(mesh), rollouts(name)
  if model == "bigrams":
    decoder, shardings, (params, ref, old) = Bigrams(layout), {}, trees(objective, table(), 8)
  else:
    decoder = tiny.decoder(mesh=mesh)
    shardings, (params, ref, old) = (
      decoder.shardings(),
      trees(objective, tiny.weights(), decoder.config.width),
    )

  def place(tree):
    return {k: jax.device_put(x, shardings.get(k, layout.replicated())) for k, x in tree.items()}

  cfg = tiny.section("learner", chunk=64, microbatch=microbatch)
  packing = Packing()
  if packed and name not in PAIRS:  # two samples of a prompt are too few to share a row
    packing = tiny.packing(r, mesh, passes.microbatches_of_rollout(cfg, tiny.P))
  run = learn.make_learn(passes.Setup(decoder, tiny.objective(objective, **changes), TX, cfg, 0.7))
  state = create({k: place(tree) for k, tree in params.items()}, TX)
  given = host.to_device(layout, (r, packing))
  state, metrics, trace = run(state, place(ref), place(old), *given)
  return params, *jax.device_get((state.params, metrics, trace))


def assert_same(
  name: str, model: str, mesh: tuple[int, ...], packed: bool, microbatch: int
) -> None:
  """The same as without a mesh, packing and microbatches, where parameters move and ratios are not
  1.
  """
  before, after, metrics, trace = updated(name, model)
  for tree in after:
    # a thousand times the tolerance
    assert norm(jax.tree.map(np.subtract, after[tree], before[tree])) > 1e-3
  assert metrics.get("ratio_max", 9) > 1.2
  _, got, got_metrics, got_trace = updated(name, model, mesh, packed, microbatch)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6), got, after)
  assert got_metrics.keys() == metrics.keys()
  for key in metrics:
    np.testing.assert_allclose(got_metrics[key], metrics[key], rtol=1e-5, atol=1e-5, err_msg=key)
  np.testing.assert_allclose(got_trace.advantages, trace.advantages, atol=1e-5)
  real = tiny.real(rollouts(name))
  np.testing.assert_allclose(got_trace.logprobs[real], trace.logprobs[real], atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_microbatches_packing_and_the_mesh_change_nothing(name):
  assert_same(name, "bigrams", (2, 2, 2, 1), True, 4)


@pytest.mark.parametrize(
  "name, mesh, packed, microbatch",
  [
    ("gspo", tiny.ONE, False, 1),
    ("ppo", tiny.ONE, False, 2),
    ("ppo", tiny.ONE, True, 1),
    ("ppo", (1, 2, 4, 1), False, 2),
  ],
)
def test_nor_does_each_alone(name, mesh, packed, microbatch):
  assert_same(name, "bigrams", mesh, packed, microbatch)


MINIBATCHES = (
  *("cispo", "dapo", "dr_grpo", "target_prob", "gspo"),
  *("sapo", "gmpo", "dppo", "vespo", "kimi", "tpo"),
  *("rpg forward", "rft", "distill", "gkd"),
)


@pytest.mark.parametrize("name", MINIBATCHES)
def test_minibatches_are_updates_of_their_own(name):
  """Each with the denominators of its aggregation over its own prompts, and all with the one old
  policy.
  """
  objective, changes = OBJECTIVES[name]
  r, layout = rollouts(name), tiny.layout()
  start, ref, old = jax.tree.map(jax.numpy.asarray, trees(objective, table(), 8))

  def run(state: Any, given: Rollouts, minibatches: int) -> Any:
    cfg = tiny.section("learner", chunk=64, minibatches=minibatches)
    update = learn.make_learn(
      passes.Setup(Bigrams(layout), tiny.objective(objective, **changes), TX, cfg, 0.7)
    )
    return update(state, ref, old, given, Packing())[0]

  def new():
    return create(jax.tree.map(jax.numpy.copy, start), TX)

  want = new()
  for part in (0, 1):
    want = run(want, jax.tree.map(lambda x, part=part: x[part::2], r), 1)
  whole = run(new(), r, 2)
  assert norm(jax.tree.map(np.subtract, whole.params, start)) > 1e-3
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6), whole.params, want.params
  )


@pytest.mark.parametrize("name", ["ppo", "gspo", "grpo", "cispo"])
def test_some_ratios_are_clipped(name):
  _, _, metrics, _ = updated(name)
  assert metrics["clip_high"] > 0 and (metrics["clip_low"] > 0 or name == "cispo")


@pytest.mark.long
@pytest.mark.slow
def test_the_mesh_changes_nothing_where_the_decoder_has_a_critic_beside_it():
  assert_same("ppo without a KL", "decoder", (1, 2, 2, 2), True, 0)
