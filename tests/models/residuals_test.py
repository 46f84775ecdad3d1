"""Checks what a layer keeps for its backward pass, by `model.remat`."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny

from grpo_jax.models import variants
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import Decoder
from grpo_jax.types import Prompts

TOKENS, WIDTH, MLP = 640, 96, 160
SHAPE = dataclasses.replace(
  variants.variant("qwen3_0.6b"), layers=1, vocab=64, width=WIDTH, heads=4, kv_heads=2, head_dim=16
)


def kept(dtype, remat):
  """Returns shapes and dtypes of what a layer keeps of all tokens, without attention's own."""
  shape = dataclasses.replace(SHAPE, mlp=MLP)
  decoder = Decoder(shape, tiny.layout(), dtype=dtype, remat=remat)
  params = jax.tree.map(lambda x: x[0], jax.jit(decoder.init)(jax.random.key(0))["layers"])
  layer = decoder._layer_function(
    shape.attention[:1], jnp.arange(TOKENS), lambda spec, q, k, v: (q * k.sum() * v.sum(), None)
  )
  x = jnp.zeros((TOKENS, WIDTH), dtype)
  pull = jax.eval_shape(
    lambda x, p: jax.vjp(lambda x, p: layer(x, (p, None))[0], x, p)[1], x, params
  )
  return [x for x in jax.tree.leaves(pull) if x.size >= TOKENS * WIDTH // 2]


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_what_is_kept_in_bfloat16_is_bfloat16(remat):
  """Norms and rotary positions are computed in float32, from arrays of half the bytes."""
  assert {x.dtype.name for x in kept("bfloat16", remat)} == {"bfloat16"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dots_keeps_products_and_block_only_what_enters_a_layer(dtype):
  block, dots, none = (kept(dtype, remat) for remat in ("block", "dots", "none"))
  assert [x.shape for x in block] == [(TOKENS, WIDTH)]
  wide = [x for x in dots if x.shape == (TOKENS, MLP)]
  assert len(wide) == 2  # gate and up; their product is made again
  assert len([x for x in none if x.shape == (TOKENS, MLP)]) == 3
  sizes = [sum(x.size for x in some) for some in (block, dots, none)]
  assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("layers", [12, 13])
@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_layers_of_several_kinds_are_not_copied_for_the_backward_pass(layers, remat):
  """Nor where their kinds repeat with a period that does not divide the layers."""
  kinds = (AttentionSpec(window=4), AttentionSpec())
  shape = dataclasses.replace(SHAPE, layers=layers, mlp=MLP, attention=kinds)
  one_kind = dataclasses.replace(shape, attention=kinds[:1])
  several, alike = (memory_of_gradient(s, remat) for s in (shape, one_kind))
  weights = 4 * sum(
    x.size for x in jax.tree.leaves(Decoder(shape, tiny.layout()).shapes()["layers"])
  )
  assert several < alike + 0.25 * weights


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_unrolled_layers_know_their_attention_before_they_run(remat):
  shape = dataclasses.replace(
    SHAPE, layers=3, mlp=MLP, attention=(AttentionSpec(window=4), AttentionSpec())
  )
  programs = {how: gradient(shape, remat, how).as_text() for how in ("scan", "unroll")}
  assert " conditional(" in programs["scan"] and " conditional(" not in programs["unroll"]


def memory_of_gradient(shape, remat):
  """Returns the bytes that a gradient holds beside its arguments and results."""
  return gradient(shape, remat).memory_analysis().temp_size_in_bytes


def gradient(shape, remat, how="scan"):
  """Returns the compiled gradient of a decoder."""
  decoder = Decoder(shape, tiny.layout(), remat=remat, layers=how)
  prompts = Prompts(jnp.zeros((1, 8), jnp.int32), jnp.full(1, 8))

  def loss(params):
    return jnp.sum(decoder.prefill(params, prompts)[0] ** 2)

  return jax.jit(jax.grad(loss)).lower(decoder.shapes()).compile()
