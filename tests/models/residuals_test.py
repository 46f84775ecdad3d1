"""Checks what a layer keeps for its backward pass, by `model.remat`."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny

from grpo_jax.models import variants
from grpo_jax.models.decoder import Decoder

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
    shape.attention[0], jnp.arange(TOKENS), lambda spec, q, k, v: (q * k.sum() * v.sum(), None)
  )
  x = jnp.zeros((TOKENS, WIDTH), dtype)
  pull = jax.eval_shape(lambda x, p: jax.vjp(lambda *a: layer(*a)[0], x, p)[1], x, params)
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
