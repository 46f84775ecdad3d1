"""The update against gradients written out, and what must not change it: microbatches, packing, the
mesh.

Where the model does not matter it is a table of bigrams, which compiles in no time.
"""

import dataclasses
import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from jax.sharding import PartitionSpec

from grpo_jax.distributed import sharding
from grpo_jax.learning import learn, movement, passes, stop_rules
from grpo_jax.learning.state import create
from grpo_jax.loops import groups
from grpo_jax.objectives import distill, gkd, grpo
from grpo_jax.ops import distillation, masked
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts as host
from grpo_jax.types import Rollouts

TEMPERATURE = 0.7
TOLERANCE = 1e-5  # of a gradient whose norm is about 1


def assert_close(a: Any, b: Any, atol: float = TOLERANCE) -> None:
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=0), a, b)


def norm(tree: Any) -> float:
  return float(np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(tree))))


def advantages(r: Rollouts) -> np.ndarray:
  """`[P, G, L]`: (r - mean) / (std + eps) of the last tokens' rewards, everywhere on the
  completion.
  """
  score = r.rewards.sum(2, dtype=np.float64)
  centred = score - score.mean(1, keepdims=True)
  return (centred / (score.std(1, ddof=1, keepdims=True) + 1e-4))[..., None] * tiny.real(r)


def weights(r: Rollouts, prompts: Any = slice(None)) -> np.ndarray:
  """`[P, G, L]`: mean over the completions of those prompts of the mean over tokens; 0 elsewhere."""
  counted = np.zeros_like(r.lengths)
  counted[prompts] = r.lengths[prompts] > 0
  return (tiny.real(r) * counted[..., None]) / np.maximum(r.lengths, 1)[..., None] / counted.sum()


# -- the whole model


@functools.cache
def reinforce() -> Any:
  """sum(w A grad log pi) of prompts and completions side by side, one sample a row, from all
  logits.
  """
  r = tiny.rollouts()
  coefficient = weights(r) * advantages(r)

  def loss(params: Any) -> jax.Array:
    logprobs, _ = tiny.naive_logprobs("test_qwen3", params, r)
    return -jnp.sum(jnp.where(tiny.real(r), coefficient * logprobs, 0.0))

  return jax.device_get(jax.jit(jax.grad(loss))(tiny.weights()))


@pytest.mark.parametrize("packed", [False, True])
def test_one_update_is_reinforce_and_every_ratio_is_one(packed):
  """Also the slow twin of the whole learner: shared prompts, packed rows and chunked heads make no
  difference.
  """
  r = tiny.rollouts()
  got = tiny.update(packing=tiny.packing(r) if packed else Packing())
  assert 0.1 < norm(reinforce()) < 10
  assert_close(got.gradient, reinforce())
  assert got.metrics["ratio"] == 1.0 and got.metrics["ratio_max"] == 1.0  # exactly
  assert got.metrics["clip_low"] == got.metrics["clip_high"] == got.metrics["old_kl"] == 0.0
  assert got.metrics["grad_norm"] == pytest.approx(norm(reinforce()), rel=1e-4)
  assert got.metrics["mismatch_max"] < 1 + 1e-4
  np.testing.assert_allclose(got.trace.advantages, advantages(r), atol=1e-5)


def test_the_samplers_log_probs_are_not_the_old_policys():
  r = tiny.rollouts()
  other = dataclasses.replace(r, sampler_logprobs=r.sampler_logprobs - 1.0)
  jax.tree.map(np.testing.assert_array_equal, tiny.update(other).gradient, tiny.update().gradient)


def test_groups_of_equal_rewards_have_no_gradient_at_all():
  """Exactly 0 in every parameter, also for 0.7, which float32 does not hold exactly."""
  r = tiny.rollouts()
  per_prompt = np.linspace(0.1, 0.7, tiny.P).astype(np.float32)[:, None, None]
  got = tiny.update(
    dataclasses.replace(r, rewards=np.where(r.given, per_prompt, 0).astype(np.float32))
  )
  assert all((x == 0).all() for x in jax.tree.leaves(got.gradient))
  assert got.metrics["advantage_abs"] == got.metrics["loss"] == 0.0


WIDE = 48  # of prompts, so that they have a list of their own


@pytest.mark.parametrize("microbatch", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_microbatches_change_nothing_but_memory(microbatch):
  r = groups.widen(tiny.rollouts(), WIDE)
  want = tiny.update()
  packing = tiny.packing(r, microbatches=tiny.P) if microbatch == 1 else Packing()
  assert microbatch > 1 or packing.prompt_list_size == 6
  got = tiny.update(r, packing, microbatch=microbatch)
  assert_close(got.gradient, want.gradient, 1e-6)
  for name in want.metrics:
    np.testing.assert_allclose(got.metrics[name], want.metrics[name], atol=1e-5, err_msg=name)
  real = tiny.real(r)
  np.testing.assert_allclose(got.trace.logprobs[real], want.trace.logprobs[real], atol=1e-5)


@pytest.mark.parametrize(
  "mesh, packed, changes",
  [
    ((2, 2, 2, 1), True, {"microbatch": 4}),
    pytest.param((1, 4, 1, 2), False, {}, marks=pytest.mark.slow),
    pytest.param((1, 1, 4, 2), False, {"microbatch": 2}, marks=pytest.mark.slow),
    pytest.param(
      (1, 2, 1, 4), True, {}, marks=pytest.mark.slow
    ),  # two key/value heads on four chips
  ],
)
def test_the_mesh_changes_nothing(mesh, packed, changes):
  r = groups.widen(tiny.rollouts(), WIDE)
  parts = tiny.P // changes["microbatch"] if changes else 1
  packing = tiny.packing(r, mesh, parts) if packed else Packing()
  assert not packed or packing.prompt_list_size
  got, want = tiny.update(r, packing, mesh=mesh, **changes), tiny.update()
  assert_close(got.gradient, want.gradient, 1e-6)
  for name in want.metrics:
    np.testing.assert_allclose(got.metrics[name], want.metrics[name], atol=1e-5, err_msg=name)


def test_a_sharded_group_shares_the_work():
  """Four chips over the samples of a group do about as much each as four over the prompts, and not
  four times that.
  """

  def flops(mesh: tuple[int, ...]) -> float:
    d, r = tiny.decoder(mesh=mesh), tiny.rollouts()
    place = functools.partial(
      jax.tree.map, lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    )
    given = tuple(place(x, d.layout.batch(x)) for x in (r.prompts, r.tokens, r.lengths))
    run = (
      tiny.logprobs(mesh=mesh).lower(place(d.shapes(), d.shardings()), *given, Packing()).compile()
    )
    return run.cost_analysis()["flops"]

  assert flops((1, 1, 4, 1)) < 1.6 * flops((1, 4, 1, 1))


# -- a table of bigrams


@dataclasses.dataclass(frozen=True)
class Bigrams:
  """What `learn` asks of a decoder: a token's state is its row of a table."""

  layout: sharding.Layout
  config = types.SimpleNamespace(logit_soft_cap=0.0, tied=False)
  lora = None
  dtype = "float32"

  def forward(
    self, params: Any, prompts: Any, rows: Any, lists: Any
  ) -> tuple[jax.Array, jax.Array]:
    end = jnp.maximum(prompts.lengths - 1, 0)[:, None]
    return params["table"][jnp.take_along_axis(prompts.tokens, end, 1)[:, 0]], params["table"][
      rows.tokens
    ]

  def unembed(self, params: Any) -> jax.Array:
    return params["unembed"]

  def specs(self, layout: sharding.Layout) -> Any:
    return {"table": PartitionSpec(None, None), "unembed": PartitionSpec(None, None)}

  def in_shard(self) -> "Bigrams":
    return self

  def for_params(self, params: Any) -> "Bigrams":
    return self

  def whole(self, params: Any) -> Any:
    return params


def table(seed: int = 0) -> Any:
  rng = np.random.default_rng(seed)

  def draw():
    return rng.normal(size=(tiny.V, 8)).astype(np.float32)

  return {"table": draw(), "unembed": draw() / 3}


def table_logprobs(params: Any, r: Rollouts) -> jax.Array:
  end = np.maximum(r.prompts.lengths - 1, 0)[:, None]
  first = np.broadcast_to(
    np.take_along_axis(r.prompts.tokens, end, 1)[:, None], (*r.lengths.shape, 1)
  )
  before = np.concatenate([first, r.tokens[..., :-1]], axis=2)
  logp = jax.nn.log_softmax(params["table"][before] @ params["unembed"].T / TEMPERATURE)
  return jnp.where(tiny.real(r), jnp.take_along_axis(logp, r.tokens[..., None], -1)[..., 0], 0.0)


@functools.cache
def updater(lr: float, mesh: tuple[int, ...], objective: tuple, **changes: Any) -> tuple[Any, Any]:
  tx = optax.sgd(lr)
  cfg = tiny.section("learner", **({"chunk": 64} | changes))
  model = Bigrams(tiny.layout(mesh))
  return tx, learn.make_learn(
    passes.Setup(model, tiny.objective(**dict(objective)), tx, cfg, TEMPERATURE)
  )


def run(
  lr: float,
  mesh: tuple[int, ...] = tiny.ONE,
  ref: Any = None,
  old: Any = None,
  given: Rollouts | None = None,
  packing: Packing = Packing(),  # noqa: B008 (frozen)
  objective: tuple = (),
  calls: int = 1,
  **changes: Any,
) -> tuple[Any, dict, learn.Trace]:
  """`learn` with plain gradient descent, once or several times on the same rollouts; numpy."""
  tx, update = updater(lr, mesh, objective, **changes)
  layout = tiny.layout(mesh)

  def put(x):
    return jax.device_put(x, layout.replicated())

  state = create({"policy": put(table())}, tx)
  rollouts, packing = host.to_device(layout, (given or tiny.rollouts(), packing))
  for _ in range(calls):
    state, metrics, trace = update(state, ref and put(ref), old and put(old), rollouts, packing)
  return jax.device_get((state, metrics, trace))


def twin(lr: float, r: Rollouts, minibatches: list, beta: float, ref: Any, old: Any) -> Any:
  """The same updates by the coefficients of grad log pi: rho A where the clip lets it through, and
  eq. 21's KL term.
  """
  pull = jax.jit(jax.grad(lambda params, c: jnp.sum(c * table_logprobs(params, r))))
  params, a = table(), advantages(r)
  old, ref = np.asarray(table_logprobs(old, r)), np.asarray(table_logprobs(ref, r))
  clipped = 0
  for rows in minibatches:
    now = np.asarray(table_logprobs(params, r))
    ratio = np.exp(now - old)
    stop = ((ratio > 1.2) & (a > 0)) | ((ratio < 0.8) & (a < 0))
    clipped += (stop & tiny.real(r)).sum()
    c = weights(r, rows) * (a * ratio * ~stop + beta * np.expm1(ref - now))
    params = jax.tree.map(
      lambda w, g: w + lr * g, params, pull(params, jnp.asarray(c, jnp.float32))
    )
  assert clipped or len(minibatches) == 1
  return params


TWO_BY_TWO = [
  slice(0, None, 2),
  slice(1, None, 2),
] * 2  # an update's prompts lie as far apart as they can
INNER = {"lr": 3.0, "ref": table(1), "objective": (("beta", 0.1),), "mu": 2, "minibatches": 2}


@pytest.mark.parametrize(
  "mesh, packed, microbatch",
  [(tiny.ONE, False, 0), (tiny.ONE, True, 2), ((2, 2, 2, 1), True, 0), ((1, 2, 4, 1), False, 2)],
)
def test_the_inner_loop_is_its_updates_one_by_one(mesh, packed, microbatch):
  """mu = 2, two minibatches: each normalised by itself, old is the sampling policy throughout, the
  clip at work.
  """
  r = tiny.rollouts()
  packing = (
    tiny.packing(r, mesh, tiny.P // microbatch if microbatch else 2) if packed else Packing()
  )
  state, metrics, trace = run(**INNER, mesh=mesh, packing=packing, microbatch=microbatch)
  assert_close(state.params["policy"], twin(3.0, r, TWO_BY_TWO, 0.1, table(1), table()), 3e-5)
  assert metrics["clip_low"] + metrics["clip_high"] > 0 and metrics["ratio_max"] > 1.2
  assert state.step == 4 and metrics["inner/passes"] == 2
  real = tiny.real(r)
  np.testing.assert_allclose(
    trace.logprobs[real], np.asarray(table_logprobs(table(), r))[real], atol=1e-5
  )


def test_an_old_tree_makes_the_ratios():
  old = jax.tree.map(lambda x: x + 0.1 * np.sign(x), table())
  state, metrics, _ = run(0.5, ref=table(1), old=old, objective=(("beta", 0.1),))
  assert_close(
    state.params["policy"], twin(0.5, tiny.rollouts(), [slice(None)], 0.1, table(1), old)
  )
  assert metrics["ratio_max"] > 1.2


def test_rows_that_only_fill_the_batch_count_in_no_denominator():
  """The same update with twice as many empty rows."""
  r = tiny.rollouts()
  empty = jax.tree.map(np.zeros_like, r)
  more = jax.tree.map(lambda x, y: np.concatenate([x, y]), r, empty)
  (want, a, _), (got, b, _) = run(0.5), run(0.5, given=more)
  assert_close(got.params, want.params, 1e-6)
  assert {k: pytest.approx(v, abs=1e-5) for k, v in a.items()} == b


@pytest.mark.parametrize("most", [0, 4])
def test_a_step_without_a_group_changes_nothing(most):
  nothing = jax.tree.map(np.zeros_like, tiny.rollouts())
  given, packing = tiny.sizes(most=most).for_learner(nothing)
  state, metrics, _ = run(0.5, given=given, packing=packing)
  jax.tree.map(np.testing.assert_array_equal, state.params["policy"], table())
  assert metrics["loss"] == metrics["grad_norm"] == 0.0
  assert state.step == 0 and state.skipped == 0 and metrics["skipped"] == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(bad):
  r = tiny.rollouts()
  rewards = r.rewards.copy()
  rewards[0, 0, r.lengths[0, 0] - 1] = bad
  state, metrics, _ = run(0.5, given=dataclasses.replace(r, rewards=rewards), calls=3)
  jax.tree.map(np.testing.assert_array_equal, state.params["policy"], table())
  assert (
    state.step == 0 and state.skipped == 3 and state.bad_steps == 3 and metrics["skipped"] == 1.0
  )
  state, metrics, _ = run(0.5)
  assert state.step == 1 and state.skipped == 0 and metrics["skipped"] == 0.0
  assert norm(jax.tree.map(np.subtract, state.params["policy"], table())) > 0.01


@pytest.mark.parametrize(
  "rule, reason",
  [({"stop_reached": 0.05}, 1), ({"stop_kl": 1e-3}, 3), ({}, stop_rules.RAN_ALL)],
)
def test_rules_that_end_the_passes(rule, reason):
  _, metrics, _ = run(3.0, mu=6, **rule)
  assert metrics["inner/stopped_by"] == reason
  assert 1 < metrics["inner/passes"] < 6 if reason else metrics["inner/passes"] == 6


def test_passes_end_when_the_surrogate_improves_no_more():
  _, metrics, _ = run(0.0, mu=6, stop_surrogate=1e-6)
  assert metrics["inner/stopped_by"] == 2 and metrics["inner/passes"] == 2


def test_passes_go_on_while_the_surrogate_improves():
  _, metrics, _ = run(0.5, mu=3, stop_surrogate=1e-6)
  assert metrics["inner/stopped_by"] == stop_rules.RAN_ALL and metrics["inner/passes"] == 3


def movement_of(objective, state, trace, packing=None):
  """Numpy."""
  cfg = tiny.section("learner", chunk=64)
  setup = passes.Setup(Bigrams(tiny.layout()), tiny.objective(objective), None, cfg, TEMPERATURE)
  return jax.device_get(
    movement.make_movement(setup)(state.params, tiny.rollouts(), trace, packing or Packing())
  )


def test_movement_says_which_way_probabilities_moved():
  r = tiny.rollouts()
  state, _, trace = run(0.5)
  right, before, after, logprobs, ratios, _ = movement_of(grpo, state, trace)
  assert right["moved_right_way"] > 0.9 and right["moved_nats"] > 0.01
  for got, params in ((before, table()), (after, state.params["policy"])):
    whole = np.where(tiny.real(r), np.asarray(table_logprobs(params, r)), 0).sum(2)
    np.testing.assert_allclose(got, whole, atol=1e-4)
  real = tiny.real(r)
  np.testing.assert_allclose(np.where(real, logprobs, 0).sum(2), after, atol=1e-4)
  np.testing.assert_allclose(
    np.log(ratios[real]), (logprobs - np.asarray(trace.logprobs))[real], atol=1e-4
  )
  back = dataclasses.replace(
    state, params=jax.tree.map(lambda old, new: 2 * old - new, {"policy": table()}, state.params)
  )
  wrong, *_ = movement_of(grpo, back, trace, tiny.packing(r))
  assert wrong["moved_right_way"] < 0.1 and wrong["moved_nats"] < -0.01


def test_an_objective_with_advantages_of_its_own_puts_them_into_the_trace():
  """Distillation: log(pi_teacher / pi) before the update."""
  r = tiny.rollouts()
  tx, cfg = optax.sgd(0.1), tiny.section("learner", chunk=64)
  setup = passes.Setup(Bigrams(tiny.layout()), tiny.objective(distill), tx, cfg, TEMPERATURE)
  update = learn.make_learn(setup)
  state = create({"policy": jax.device_put(table(), tiny.layout().replicated())}, tx)
  _, _, trace = update(state, table(1), None, r, Packing())
  want = np.asarray(table_logprobs(table(1), r)) - np.asarray(table_logprobs(table(), r))
  np.testing.assert_allclose(trace.advantages, np.where(tiny.real(r), want, 0), atol=1e-5)


def test_an_entropy_bonus_raises_the_entropy():
  """Advantages of a process reward aside, two updates with it end at a larger entropy."""
  found = {}
  for bonus in (0.0, 5.0):
    _, metrics, _ = run(lr=1.0, objective=(("entropy_bonus", bonus),), calls=3)
    found[bonus] = metrics["entropy"]
  assert found[5.0] > found[0.0] + 0.05


@pytest.mark.parametrize(
  "changes",
  [{"divergence": "forward"}, {"divergence": "reverse", "top_k": 3}, {"jensen_shannon_beta": 0.2}],
)
def test_gkd_moves_by_the_divergence_of_whole_distributions(changes):
  """One step of gradient descent, against all logits at once."""
  r = tiny.rollouts()
  tx, cfg = optax.sgd(1.0), tiny.section("learner", chunk=64)
  objective = tiny.objective(gkd, **changes)
  update = learn.make_learn(passes.Setup(Bigrams(tiny.layout()), objective, tx, cfg, TEMPERATURE))
  state = create({"policy": jax.device_put(table(), tiny.layout().replicated())}, tx)
  state, metrics, _ = update(state, table(1), None, r, tiny.packing(r))

  def logits(params):
    first = np.broadcast_to(
      r.prompts.tokens[np.arange(tiny.P), r.prompts.lengths - 1][:, None], r.lengths.shape
    )
    before = np.concatenate([first[..., None], r.tokens[..., :-1]], axis=2)
    return jax.nn.log_softmax(params["table"][before] @ params["unembed"].T / TEMPERATURE)

  def loss(params):
    apart = distillation.value(objective.divergence, logits(params), logits(table(1)))
    weights = masked.token_weights(tiny.real(r).astype("f"), r.lengths, "sequence_mean")
    return jnp.sum(weights * apart)

  value, slope = jax.value_and_grad(loss)(table())
  np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
  moved = jax.tree.map(jnp.subtract, table(), state.params["policy"])
  assert norm(moved) > 0.01
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), moved, slope)


def test_gkd_rests_where_the_teacher_is_the_student():
  r, tx = tiny.rollouts(), optax.sgd(1.0)
  setup = passes.Setup(
    Bigrams(tiny.layout()), tiny.objective(gkd), tx, tiny.section("learner"), TEMPERATURE
  )
  state = create({"policy": jax.device_put(table(), tiny.layout().replicated())}, tx)
  _, metrics, _ = learn.make_learn(setup)(state, table(), None, r, Packing())
  assert abs(metrics["loss"]) < 1e-9 and metrics["grad_norm"] < 1e-6
