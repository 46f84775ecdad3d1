"""Forward passes of trees that are not trained."""

import dataclasses
import functools
import types

import jax
import numpy as np
import optax
import pytest
import tiny
from learn_test import TEMPERATURE, Bigrams, table

from grpo_jax.errors import SettingError
from grpo_jax.learning import learn, passes
from grpo_jax.learning.state import create
from grpo_jax.objectives import distill, gkd, rft
from grpo_jax.ops import distillation, masked
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts as host
from grpo_jax.types import Prompts


def setup(**learner):
  cfg = tiny.section("learner", chunk=64, **learner)
  return passes.Setup(Bigrams(tiny.layout()), tiny.objective(gkd), optax.sgd(1.0), cfg, TEMPERATURE)


def test_the_teachers_states_predict_each_token():
  """Their logits are those of its log-probs, whatever the microbatches and rows."""
  r, real = tiny.rollouts(), tiny.real(tiny.rollouts())
  teacher = jax.tree.map(jax.numpy.asarray, table(1))
  want = passes.frozen_outputs(setup(), {"policy": teacher}, r, Packing()).logprobs
  for microbatch in (0, 2):
    s = setup(microbatch=microbatch)
    count = passes.microbatches_of_rollout(s.cfg, tiny.P)
    packing = tiny.packing(r, tiny.ONE, count)
    states = jax.jit(functools.partial(passes.teacher_hidden, s))(teacher, r, packing)
    assert states.shape == (*r.tokens.shape, 8)
    logp = jax.nn.log_softmax(states @ teacher["unembed"].T / TEMPERATURE)
    got = np.take_along_axis(np.asarray(logp), r.tokens[..., None], -1)[..., 0]
    np.testing.assert_allclose(got[real], want[real], atol=1e-5)


def asked(r, prompts, lengths):
  """Returns rollouts whose teacher is asked these `[P, G, Lt]` or `[P, Lt]`, and their packing."""
  r = dataclasses.replace(r, ref_prompts=Prompts(prompts, lengths))
  return r, plan.pack(passes.asked_of_teacher(r), tiny.layout())


def update(r, ref, packing=None, objective=gkd, mesh=tiny.ONE, microbatch=0):
  """Returns the parameters after one update of a table of bigrams, and its metrics."""
  layout = tiny.layout(mesh)
  cfg = tiny.section("learner", chunk=64, microbatch=microbatch)
  tx = optax.sgd(1.0)
  s = passes.Setup(Bigrams(layout), tiny.objective(objective), tx, cfg, TEMPERATURE)
  if packing is not None:
    count = passes.microbatches_of_rollout(cfg, tiny.P)
    packing = plan.pack(passes.asked_of_teacher(r), layout, count)
  own, packing = host.to_device(layout, (r, packing))
  state = create({"policy": jax.device_put(table(), layout.replicated())}, tx)
  ref = jax.device_put(ref, layout.replicated())
  state, metrics, _ = learn.make_learn(s)(state, ref, None, own, Packing(), None, packing)
  return jax.device_get((state.params["policy"], metrics))


def same(a, b, atol=1e-6):
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=atol), a, b)


def repeated(r):
  """Returns the policy's own prompts for each completion, `[P, G, Lp]` and `[P, G]`."""
  tokens = np.repeat(r.prompts.tokens[:, None], tiny.G, 1)
  return tokens, np.repeat(r.prompts.lengths[:, None], tiny.G, 1)


@pytest.mark.parametrize("objective", [gkd, distill])
def test_a_teacher_that_is_asked_the_same_is_the_teacher(objective):
  r = tiny.rollouts()
  for got, want in zip(
    update(*asked_with(r, *repeated(r)), objective=objective),
    update(r, table(1), objective=objective),
  ):
    same(got, want)


def test_a_policy_that_is_asked_the_same_teaches_itself_nothing():
  r = tiny.rollouts()
  with_prompts, packing = asked(r, *repeated(r))
  params, metrics = update(with_prompts, table(), packing)
  assert abs(metrics["loss"]) < 1e-9
  same(params, table())


def odd_prompts(r):
  """Returns prompts of other lengths and tokens for each completion, some with none."""
  rng = np.random.default_rng(3)
  tokens = rng.integers(1, tiny.V, (tiny.P, tiny.G, 9)).astype(np.int32)
  lengths = rng.integers(0, 10, (tiny.P, tiny.G)).astype(np.int32)
  return tokens, np.where(r.prompts.lengths[:, None] > 0, lengths, 0)


def test_only_completions_with_a_teacher_are_learned_from_each_after_its_own_prompt():
  """Against the divergence of all logits at once."""
  r = tiny.rollouts()
  tokens, lengths = odd_prompts(r)
  with_prompts, packing = asked(r, tokens, lengths)
  _, metrics = update(with_prompts, table(1), packing)

  def log_probs(params, first):
    before = np.concatenate([first[..., None], r.tokens[..., :-1]], axis=2)
    return jax.nn.log_softmax(params["table"][before] @ params["unembed"].T / TEMPERATURE)

  end = np.maximum(lengths - 1, 0)[..., None]
  asked_last = np.take_along_axis(tokens, end, 2)[..., 0]
  own_last = np.take_along_axis(r.prompts.tokens, np.maximum(r.prompts.lengths - 1, 0)[:, None], 1)
  student = log_probs(table(), np.broadcast_to(own_last, lengths.shape))
  apart = distillation.value(
    distillation.Divergence("jensen_shannon"), student, log_probs(table(1), asked_last)
  )
  mask = tiny.real(r) * (lengths > 0)[..., None]
  weights = masked.token_weights(mask.astype("f"), r.lengths, "sequence_mean")
  np.testing.assert_allclose(metrics["loss"], np.sum(weights * apart), rtol=1e-5)


def test_microbatches_and_the_mesh_change_nothing_of_a_teacher_with_prompts():
  r = tiny.rollouts()
  with_prompts, packing = asked(r, *odd_prompts(r))
  want, of_want = update(with_prompts, table(1), packing)
  for mesh, microbatch in ((tiny.ONE, 2), ((2, 2, 2, 1), 4)):
    got, metrics = update(with_prompts, table(1), packing, mesh=mesh, microbatch=microbatch)
    same(got, want)
    same(metrics, of_want, atol=1e-5)


@pytest.mark.parametrize("objective", [gkd, distill])
@pytest.mark.parametrize(
  "mesh, microbatch", [(tiny.ONE, 0), (tiny.ONE, 2), ((2, 2, 2, 1), 0), ((2, 2, 2, 1), 4)]
)
def test_a_groups_prompt_is_that_of_each_of_its_completions(objective, mesh, microbatch):
  r = tiny.rollouts()
  tokens, lengths = (each[:, 0] for each in odd_prompts(r))
  lengths[0] = 0  # that group has no teacher
  each = [np.repeat(x[:, None], tiny.G, 1) for x in (tokens, lengths)]
  how = {"objective": objective, "mesh": mesh, "microbatch": microbatch}
  got, metrics = update(*asked_with(r, tokens, lengths), **how)
  want, of_want = update(*asked_with(r, *each), **how)
  same(got, want)
  same(metrics, of_want, atol=1e-5)


def asked_with(r, prompts, lengths):
  with_prompts, packing = asked(r, prompts, lengths)
  return with_prompts, table(1), packing


@pytest.mark.parametrize("microbatch,want", [(0, 1), (tiny.P, 1), (4, 2)])
def test_a_teacher_with_prompts_has_the_microbatches_of_its_packing(monkeypatch, microbatch, want):
  """More of them would each compute a list that was sized for fewer."""
  counts, split = set(), passes.split_microbatches

  def counted(layout, tree, count):
    counts.add(count)
    return split(layout, tree, count)

  monkeypatch.setattr(passes, "split_microbatches", counted)
  r = tiny.rollouts()
  for objective in (gkd, distill):
    with_prompts, packing = asked(r, *odd_prompts(r))
    update(with_prompts, table(1), packing, objective=objective, microbatch=microbatch)
  assert counts == {want}


@dataclasses.dataclass(frozen=True)
class Capped(Bigrams):
  """A teacher whose logits are capped."""

  config = types.SimpleNamespace(logit_soft_cap=1.5, tied=False)


@pytest.mark.parametrize("mesh", [tiny.ONE, (1, 2, 2, 1)])
def test_a_teacher_may_be_wider_and_cap_its_logits(mesh):
  r, layout = tiny.rollouts(), tiny.layout(mesh)
  rng = np.random.default_rng(5)
  wide = {name: rng.normal(size=(tiny.V, 13)).astype("f") for name in ("table", "unembed")}
  cfg, tx = tiny.section("learner", chunk=64), optax.sgd(1.0)
  s = passes.Setup(
    Bigrams(layout), tiny.objective(gkd), tx, cfg, TEMPERATURE, ref_decoder=Capped(layout)
  )
  state = create({"policy": jax.device_put(table(), layout.replicated())}, tx)
  ref = jax.device_put(wide, layout.replicated())
  _, metrics, _ = learn.make_learn(s)(state, ref, None, host.to_device(layout, r), Packing())

  def log_probs(params, cap):
    end = np.maximum(r.prompts.lengths - 1, 0)[:, None]
    first = np.take_along_axis(r.prompts.tokens, end, 1)[:, None]
    first = np.broadcast_to(first, (*r.lengths.shape, 1))
    before = np.concatenate([first, r.tokens[..., :-1]], axis=2)
    z = params["table"][before] @ params["unembed"].T
    return jax.nn.log_softmax((cap * np.tanh(z / cap) if cap else z) / TEMPERATURE)

  spec = distillation.Divergence("jensen_shannon")
  apart = distillation.value(spec, log_probs(table(), 0), log_probs(wide, 1.5))
  weights = masked.token_weights(tiny.real(r).astype("f"), r.lengths, "sequence_mean")
  np.testing.assert_allclose(metrics["loss"], np.sum(weights * apart), rtol=1e-5)


def test_without_any_teacher_nothing_moves():
  r = tiny.rollouts()
  tokens, lengths = odd_prompts(r)
  with_prompts, packing = asked(r, tokens, 0 * lengths)
  params, metrics = update(with_prompts, table(1), packing)
  assert metrics["loss"] == 0
  same(params, table(), atol=0)


@pytest.mark.parametrize("rule", ["stop_reached", "stop_surrogate", "stop_kl"])
def test_a_rule_needs_a_ratio(rule):
  cfg = tiny.section("learner", mu=2, **{rule: 0.1})
  with pytest.raises(SettingError, match=f"learner.{rule}=0.1: rft has no ratio"):
    passes.Setup(None, tiny.objective(rft), None, cfg, TEMPERATURE)


@pytest.mark.parametrize("rule", ["stop_reached", "stop_surrogate", "stop_kl"])
def test_a_rule_needs_several_passes(rule):
  cfg = tiny.section("learner", mu=1, minibatches=2, **{rule: 0.1})
  with pytest.raises(SettingError, match=f"learner.{rule}=0.1 with learner.mu=1"):
    passes.Setup(None, tiny.objective(), None, cfg, TEMPERATURE)
