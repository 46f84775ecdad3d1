"""Adapters of low rank: against weights that they are merged into, against PEFT, and in runs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny
from small_models import SMALL

from grpo_jax.errors import SettingError
from grpo_jax.learning import forward, learn, passes
from grpo_jax.learning.state import create
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.lora import A, B, Lora, has_adapters, join, split
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler
from grpo_jax.setup import adapters, build, parameters
from grpo_jax.setup.experiment import make

SHAPE = Lora(rank=3, alpha=6.0, modules=("q", "o", "down"))
MESHES = [tiny.ONE, pytest.param((1, 2, 2, 2), marks=pytest.mark.slow)]


def decoder(mesh=tiny.ONE, lora=SHAPE, variant="test_qwen3"):
  return Decoder(SMALL[variant], tiny.layout(mesh), lora=lora)


@functools.cache
def small_adapters(lora=SHAPE, variant="test_qwen3"):
  """Of which none is 0, numpy."""
  keys = iter(jax.random.split(jax.random.key(5), 100))
  shapes = split(decoder(lora=lora, variant=variant).shapes())[1]
  return jax.device_get(
    jax.tree.map(lambda x: 0.2 * jax.random.normal(next(keys), x.shape), shapes)
  )


def by_hand(params, trained, lora=SHAPE):
  """The weights with scale * B A added, layer by layer, numpy float64."""
  merged = jax.tree.map(np.array, params)
  for part in trained["layers"]:
    for name, of_module in trained["layers"][part].items():
      weight = merged["layers"][part][name]["weight"]
      for i in range(len(weight)):
        change = np.float64(of_module[B][i]) @ np.float64(of_module[A][i])
        weight[i] = weight[i] + lora.alpha / lora.rank * change
  return merged


def on_mesh(mesh, tree):
  d = decoder(mesh)
  shardings = d.shardings() if has_adapters(tree) and "embed" in tree else d.base.shardings()
  return jax.device_put(tree, split(d.shardings())[1] if "embed" not in tree else shardings)


def test_the_tree_is_cut_in_two_and_put_together():
  whole = join(tiny.weights(), small_adapters())
  base, trained = split(whole)
  assert jax.tree.structure(base) == jax.tree.structure(tiny.weights())
  assert {path[-1].key for path, _ in jax.tree.leaves_with_path(trained)} == {A, B}
  assert sorted(trained["layers"]["attention"]) == ["o", "q"] and list(
    trained["layers"]["mlp"]
  ) == ["down"]
  assert join(base, whole) is whole and join(None, trained) is trained
  assert jax.tree.structure(join(base, trained)) == jax.tree.structure(whole)
  with_head = split(whole | {"score": {"weight": 1}, "value_head": {"bias": 2}})
  assert "score" not in with_head[0] and with_head[1]["value_head"] == {"bias": 2}


@pytest.mark.parametrize("mesh", MESHES)
def test_merged_weights_and_log_probs(mesh):
  """The log-probs of a tree with adapters are those of weights with the product added, also where
  all are sharded.
  """
  d, r = decoder(mesh), tiny.rollouts()
  whole = join(on_mesh(mesh, tiny.weights()), on_mesh(mesh, small_adapters()))
  merged = d.merged(whole)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    merged,
    by_hand(tiny.weights(), small_adapters()),
  )
  assert jax.tree.map(lambda x: x.sharding, merged) == d.base.shardings()
  run = jax.jit(functools.partial(forward.logprobs, d, temperature=0.7, chunk=64))
  given = host.to_device(d.layout, (r.prompts, r.tokens, r.lengths, tiny.packing(r, mesh)))
  got, want, start = (
    jax.device_get(run(tree, *given)[0]) for tree in (whole, merged, split(whole)[0])
  )
  np.testing.assert_allclose(got[tiny.real(r)], want[tiny.real(r)], atol=2e-5)
  assert np.abs(want - start)[tiny.real(r)].max() > 0.1


@pytest.mark.parametrize("mesh", MESHES)
def test_the_update_is_the_chain_rule_of_that_of_all_weights(mesh):
  """dA = scale B' dW and dB = scale dW A', with dW of the merged weights; the base is the
  reference.
  """
  d, r = decoder(mesh), tiny.rollouts()
  settings = tiny.objective(beta=0.1)
  cfg = tiny.section("learner", chunk=64, microbatch=4)
  run = learn.make_learn(passes.Setup(d, settings, tiny.GRADIENT, cfg, 0.7))
  state = create({"policy": on_mesh(mesh, small_adapters())}, tiny.GRADIENT)
  base = on_mesh(mesh, tiny.weights())
  given = host.to_device(d.layout, (r, tiny.packing(r, mesh, 2)))
  state, metrics, _ = jax.device_get(run(state, {}, None, *given, base))
  got, merged = state.opt_state[0].trace["policy"], by_hand(tiny.weights(), small_adapters())
  full = learn.make_learn(passes.Setup(d.base, settings, tiny.GRADIENT, cfg, 0.7))
  want, same, _ = jax.device_get(
    full(create({"policy": on_mesh(mesh, merged)}, tiny.GRADIENT), base, None, *given)
  )
  np.testing.assert_allclose(metrics["kl"], same["kl"], rtol=1e-4)
  assert metrics["kl"] > 0.001
  np.testing.assert_allclose(metrics["loss"], same["loss"], atol=1e-5)
  of_weights = want.opt_state[0].trace["policy"]["layers"]
  for part in got["layers"]:
    for name, grads in got["layers"][part].items():
      mine, dw = small_adapters()["layers"][part][name], of_weights[part][name]["weight"]
      np.testing.assert_allclose(grads[A], 2.0 * np.swapaxes(mine[B], 1, 2) @ dw, atol=1e-5)
      np.testing.assert_allclose(grads[B], 2.0 * dw @ np.swapaxes(mine[A], 1, 2), atol=1e-5)


def test_fresh_adapters_change_nothing():
  d, r = decoder(), tiny.rollouts()
  trained = adapters.fresh_adapters(d, {}, jax.random.key(0))
  assert all(
    (x == 0).all() == (path[-1].key == B) for path, x in jax.tree.leaves_with_path(trained)
  )
  bound = SMALL["test_qwen3"].width ** -0.5
  assert 0.9 * bound < abs(trained["layers"]["attention"]["q"][A]).max() <= bound
  run = jax.jit(functools.partial(forward.logprobs, d, temperature=0.7, chunk=64))
  given = host.to_device(d.layout, (r.prompts, r.tokens, r.lengths, tiny.packing(r)))
  np.testing.assert_array_equal(
    run(join(tiny.params(), trained), *given)[0], run(tiny.params(), *given)[0]
  )


def test_a_cpu_does_not_convert_the_whole_base():
  d = Decoder(
    dataclasses.replace(SMALL["test_qwen3"], layers=16, mlp=256), tiny.layout(), lora=SHAPE
  )
  base, trained = adapters.abstract_base(d, "bfloat16"), split(parameters.abstract(d))[1]
  given = tiny.rollouts()

  def temporary(options):
    run = functools.partial(forward.logprobs, d, temperature=1.0, chunk=64)
    jitted = jax.jit(lambda *args: run(*args)[0], compiler_options=options)
    args = join(base, trained), given.prompts, given.tokens, given.lengths, tiny.packing(given)
    return jitted.lower(*args).compile().memory_analysis().temp_size_in_bytes

  layers = 4 * sum(leaf.size for leaf in jax.tree.leaves(base["layers"]))
  assert (
    temporary(learn.compiler_options(d.base)) - temporary(learn.compiler_options(d)) > 0.9 * layers
  )


@pytest.mark.parametrize("mesh", MESHES)
def test_the_sampler_decodes_merged_weights(mesh):
  d = decoder(mesh)
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7)
  whole = join(on_mesh(mesh, tiny.weights()), on_mesh(mesh, small_adapters()))
  prompts = host.to_device(d.layout, tiny.prompts())
  of_adapters, of_weights = (sampler.make_sampler(x, cfg, tiny.STOP) for x in (d, d.base))
  got, want = (
    of_adapters(whole, prompts, jax.random.key(3))[0],
    of_weights(d.merged(whole), prompts, jax.random.key(3))[0],
  )
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.sampler_logprobs, want.sampler_logprobs, atol=1e-5)
  assert (got.tokens != of_adapters(split(whole)[0], prompts, jax.random.key(3))[0].tokens).any()


# -- settings


def test_adapters_stand_on_a_folder(tmp_path):
  c = tiny_config()
  c.init_from, c.model.variant, c.tokenizer = "", "test_qwen3", "words"
  with pytest.raises(
    SettingError, match="lora.rank=2 with init_from='': adapters stand on weights"
  ):
    build.model(make(c))


def tiny_config():
  from experiments import arithmetic

  c = arithmetic.get_config()
  c.lora.rank = 2
  return c
