"""Checks that products of float32 arrays ask for all of their digits, and those of bfloat16 do not."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.learning import learn, optimizer, passes
from grpo_jax.learning.state import create
from grpo_jax.models import layers
from grpo_jax.ops.logprobs import token_stats
from grpo_jax.ops.precision import outer_sum, precision
from grpo_jax.sampling import rollouts, sampler

EXACT = "precision = [HIGHEST, HIGHEST]"


def test_float32_alone_asks_for_it():
  assert precision(jnp.float32) is precision("float32") is jax.lax.Precision.HIGHEST
  assert precision(np.dtype("float32")) is jax.lax.Precision.HIGHEST
  assert precision("bfloat16") is precision(jnp.bfloat16) is None


def products(text):
  """Returns the lines of a program with a product of float32 factors, and those with others."""
  lines = re.findall(r".*stablehlo\.dot_general.*", text)
  exact = [line for line in lines if re.search(r": \(tensor<[\dx]*f32>, tensor<[\dx]*f32>\)", line)]
  return exact, [line for line in lines if line not in exact]


def sampling(dtype):
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, dtype=dtype, cache_dtype=dtype)
  run = sampler.make_sampler(tiny.decoder(), cfg, tiny.STOP)
  params = tiny.params()
  prompts = rollouts.to_device(tiny.layout(), tiny.prompts())
  ready = jax.eval_shape(run.ready, params)
  return run.run.lower(ready, prompts, jax.random.key(0)).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_product_of_a_rollout(dtype):
  exact, others = products(sampling(dtype))
  assert len(exact if dtype == "float32" else others) > 10
  assert [line for line in exact if EXACT not in line] == []
  assert not any(EXACT in line for line in others)


def test_every_product_of_an_update():
  """Covers the reference's pass and the gradient."""
  decoder = tiny.decoder()
  cfg = tiny.section("learner", chunk=64)
  learner = learn.make_learn(passes.Setup(decoder, tiny.objective(), tiny.GRADIENT, cfg, 0.7))
  state = create({"policy": tiny.params()}, tiny.GRADIENT)
  drawn = tiny.rollouts()
  batch = rollouts.to_device(tiny.layout(), (drawn, tiny.packing(drawn)))
  exact, others = products(learner.lower(state, tiny.params(), None, *batch).as_text())
  assert len(exact) > 30 and not others
  assert [line for line in exact if EXACT not in line] == []


def test_every_product_of_muon():
  cfg = tiny.section("learner", optimizer="muon")
  tx = optimizer.make_optimizer(cfg, 10)
  params = {"policy": {"layers": {"weight": jnp.ones((2, 4, 8))}}}
  exact, others = products(jax.jit(tx.update).lower(params, tx.init(params), params).as_text())
  assert len(exact) > 2 and not others
  assert [line for line in exact if EXACT not in line] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sum_of_outer_products_is_rounded_once(dtype):
  rng = np.random.default_rng(0)
  a, b = (rng.integers(-50, 51, (300, width)).astype(np.float32) for width in (5, 7))
  want = np.einsum("na,nb->ab", a, b)
  found = outer_sum(jnp.asarray(a, dtype), jnp.asarray(b, dtype), dtype)
  assert found.dtype == dtype and abs(want).max() > 256  # some are rounded in bfloat16
  np.testing.assert_array_equal(found, want.astype(dtype))


def layer(weight, x):
  return 2 * layers.linear(weight, x)


def head(unembed, hidden):
  return token_stats(hidden, unembed, jnp.zeros(len(hidden), int), chunk=256).logprobs


@pytest.mark.parametrize("compute,count", [(layer, 3), (head, 4)])
def test_a_cpu_multiplies_bfloat16_without_a_detour_over_float32(compute, count):
  """Counts the logits of the head twice: its backward pass computes them again."""
  weight, x = jnp.ones((640, 512), jnp.bfloat16), jnp.ones((1024, 512), jnp.bfloat16)

  def gradients(weight, x):
    y, pull = jax.vjp(compute, weight, x)
    return pull(y)

  options = learn.compiler_options(tiny.decoder(dtype="bfloat16"))
  text = jax.jit(gradients, compiler_options=options).lower(weight, x).compile().as_text()
  products = []
  for computation in text.split("\n}\n"):
    kinds = dict(re.findall(r"%?([\w.]+) = (\w+)\[", computation))
    for names in re.findall(r"%?([\w.]+) = \S+ dot\(%?([\w.]+), %?([\w.]+)\)", computation):
      products.append([kinds[name] for name in names])
  assert products == count * [["f32", "bf16", "bf16"]]
