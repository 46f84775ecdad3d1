"""Checks that products of float32 arrays ask for all of their digits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.learning import learn, passes
from grpo_jax.learning.state import create
from grpo_jax.ops.precision import precision
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
