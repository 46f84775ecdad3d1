"""Stores the keys and values of the sampler's slots, and computes their attention.

A slot decodes one completion. In each layer it sees two stores of keys and values: those of its
prompt, which are computed once, and a ring of L columns that holds its own past. All slots write
one common column of their rings, `step mod L`, so that the write is one in-place slice and no
scatter; a mask restricts each slot to the columns that it wrote itself.

With L = 6, when step 8 writes column 2 (numbers are tokens of the slot's completion):

    slot   prompt         ring
    0      a b c d . .    3 4 5 - 1 2     age 5: it was filled at step 4
    1      e f . . . .    1 2 3 - - -     age 3: it was filled at step 6; older columns are masked

Shape letters: S slots, C slots of a prompt (1 where each slot has a copy of its own), K key/value
heads, M query heads for each of them, d head_dim, Lp prompt tokens, L columns of the ring, B
columns of one of its blocks.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models.attention import MASKED, AttentionSpec
from grpo_jax.models.decoder import KV
from grpo_jax.ops.decoding import soft_cap
from grpo_jax.ops.precision import precision
from grpo_jax.types import Array

MOST_BLOCKS = 4  # blocks of a ring; each skips a quarter of the columns that are still empty
MOST_LAYERS = 64  # layers that are compiled: the decoding loop is compiled once for each block
LEAST_COLUMNS = 32  # columns of a block; fewer are not worth a loop


class Stored(NamedTuple):
  """Keys or values in the dtype of a cache."""

  x: Array
  scale: Array | None  # int8: float32 size of a step, for each vector of head_dim numbers


class StoredKV(NamedTuple):
  """Keys and values of one layer; keys are transposed, the fastest layout for few queries."""

  keys: Stored  # [n, K, d, length]
  values: Stored  # [n, K, length, d]


class LayerCache(NamedTuple):
  """Stores of one layer.

  The ring is split into blocks: those that are still empty need not be read.
  """

  prompt: StoredKV  # n = S / C, length Lp: slots C * i to C * i + C - 1 read entry i
  ring: list[StoredKV]  # blocks; n = S, and their lengths B add up to L


def store(x: Array, dtype: str, axis: int) -> Stored:
  """Returns x in a cache's dtype; `axis` is that of head_dim, over which int8 has one scale."""
  if dtype != "int8":
    return Stored(x.astype(dtype), None)
  scale = jnp.max(jnp.abs(x.astype(jnp.float32)), axis, keepdims=True) / 127
  return Stored(jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale)


def write(buffer: Stored, new: Stored, start: tuple[int | Array, ...]) -> Stored:
  """Returns `buffer` with `new` written at the indices `start`."""
  return jax.tree.map(lambda old, x: jax.lax.dynamic_update_slice(old, x, start), buffer, new)


def store_prompts(kv: KV, dtype: str) -> list[StoredKV]:
  """Returns the caches of prompts, one for each layer, of KV `[layers, P, Lp, K, d]`."""
  return [
    StoredKV(
      store(jnp.transpose(k, (0, 2, 3, 1)), dtype, 2),
      store(jnp.transpose(v, (0, 2, 1, 3)), dtype, 3),
    )
    for k, v in zip(kv.keys, kv.values)
  ]


def empty(n: int, kv_heads: int, head_dim: int, length: int, dtype: str) -> StoredKV:
  """Returns a store `[n, ...]` of `length` tokens that holds zeros."""

  def zeros(shape: tuple[int, ...], axis: int) -> Stored:
    # Made as they are: XLA would look for the largest number of all these zeros as it compiles.
    scales = (*shape[:axis], 1, *shape[axis + 1 :])
    return Stored(jnp.zeros(shape, dtype), jnp.zeros(scales) if dtype == "int8" else None)

  return StoredKV(
    zeros((n, kv_heads, head_dim, length), 2), zeros((n, kv_heads, length, head_dim), 3)
  )


def ring_blocks(length: int, layers: int) -> tuple[tuple[int, int], ...]:
  """Returns (first column, end) of each block of a ring of `length` columns."""
  n = max(1, min(MOST_BLOCKS, MOST_LAYERS // layers, length // LEAST_COLUMNS))
  edges = [length * i // n for i in range(n + 1)]
  return tuple(zip(edges, edges[1:]))


def copy_prompt(cache: LayerCache, prompts: StoredKV, prompt: Array, slot: Array) -> LayerCache:
  """Returns the cache where `slot` (`[]`) has its own copy of the KV of `prompt` (`[]`)."""
  one = jax.tree.map(lambda x: x[prompt][None], prompts)
  copied = (write(old, new, (slot, 0, 0, 0)) for old, new in zip(cache.prompt, one))
  return cache._replace(prompt=StoredKV(*copied))


def copy_ring(cache: LayerCache, ring: Sequence[StoredKV], slot: Array) -> LayerCache:
  """Returns the cache where the ring of `slot` (`[]`) holds the blocks `[1, K, ...]`."""
  written = [
    StoredKV(*(write(old, new, (slot, 0, 0, 0)) for old, new in zip(block, blocks)))
    for block, blocks in zip(cache.ring, ring)
  ]
  return cache._replace(ring=written)


def write_token(cache: LayerCache, block: int, column: Array, k: Array, v: Array) -> LayerCache:
  """Returns the cache with k and v `[S, K, d]` of a token of each slot in `column` of a block."""
  keys, values = cache.ring[block]
  keys = write(keys, store(k[..., None], keys.x.dtype.name, 2), (0, 0, 0, column))
  values = write(values, store(v[:, :, None], values.x.dtype.name, 3), (0, 0, column, 0))
  written = StoredKV(keys, values)
  return cache._replace(ring=[written if i == block else kv for i, kv in enumerate(cache.ring)])


def visible(
  spec: AttentionSpec,
  prompt_lengths: Array,
  age: Array,
  width: int,
  steps_since_write: Array,
  blocks: Sequence[tuple[int, int]],
) -> list[Array]:
  """Returns the mask of keys that the newest token of each slot may attend to.

  Args:
    spec: of the layer; its window counts tokens back from the newest one, itself included.
    prompt_lengths: `[S]` tokens of each slot's prompt.
    age: `[S]` tokens of each slot's completion, the newest included; its position is prompt_lengths
      + age - 1.
    width: Lp.
    steps_since_write: `[L]`, of each column of the ring: in a slot that wrote it, how many tokens
      back it is.
    blocks: the blocks of the ring that are read.

  Returns:
    bool: of the prompt `[S, Lp]`, then of each block `[S, B]`.
  """
  sees_prompt = jnp.arange(width) < prompt_lengths[:, None]
  reach = age
  if spec.window:
    sees_prompt &= jnp.arange(width) > (prompt_lengths + age - 1 - spec.window)[:, None]
    reach = jnp.minimum(age, spec.window)
  sees_ring = (steps_since_write[begin:end] < reach[:, None] for begin, end in blocks)
  return [sees_prompt, *sees_ring]


def attend_slots(
  spec: AttentionSpec,
  cache: LayerCache,
  block: int,
  column: Array,
  masks: Sequence[Array],
  q: Array,
  k: Array,
  v: Array,
) -> tuple[Array, LayerCache]:
  """Returns the attention of a token of each slot to its prompt, its own past and itself.

  One softmax goes over the prompt's keys and those of the ring.

  Args:
    spec: the scale of queries and the soft cap of scores; its window is in the masks.
    cache: of the layer.
    block: the block of the ring that all slots write.
    column: `[]`, the column in it.
    masks: see `visible`; of the first blocks of the ring, which are read.
    q: `[S, K * M, d]`; k, v: `[S, K, d]`, of the token.

  Returns:
    `[S, K * M, d]`, and the cache with k and v in it.
  """
  s, kv_heads, d = k.shape
  cache = write_token(cache, block, column, k, v)
  q_SxKxMxd = spec.scaled(q).reshape(s, kv_heads, -1, d)
  q_by_prompt = by_prompt(q_SxKxMxd, cache.prompt.keys.x.shape[0])
  read = cache.ring[: len(masks) - 1]
  scores = [by_slot(score(spec, q_by_prompt, cache.prompt.keys), s)]
  scores += [score(spec, q_SxKxMxd, kv.keys) for kv in read]
  scores = [jnp.where(mask[:, None, None], x, MASKED) for x, mask in zip(scores, masks)]
  top = functools.reduce(jnp.maximum, [x.max(-1, keepdims=True) for x in scores])
  # of the prompt and of each block: [S, K, M, Lp or B]
  weights = [jnp.exp(x - top) for x in scores]
  prompt_weights = by_prompt(weights[0], cache.prompt.keys.x.shape[0])
  out = by_slot(mix(prompt_weights, cache.prompt.values, q.dtype), s)
  for x, kv in zip(weights[1:], read):
    out = out + mix(x, kv.values, q.dtype)
  total = functools.reduce(jnp.add, [x.sum(-1) for x in weights])
  out = out / total[..., None].astype(out.dtype)
  return out.reshape(s, -1, d), cache


def by_prompt(x_SxKxMxn: Array, prompts: int) -> Array:
  """Returns `[S, K, M, n]` as `[S / C, K, C * M, n]`: slots of a prompt share a product with it."""
  s, kv_heads, _, n = x_SxKxMxn.shape
  x = x_SxKxMxn.reshape(prompts, s // prompts, *x_SxKxMxn.shape[1:])
  return jnp.moveaxis(x, 1, 2).reshape(prompts, kv_heads, -1, n)


def by_slot(x: Array, slots: int) -> Array:
  """Returns `[S / C, K, C * M, n]` as `[S, K, M, n]`, which undoes `by_prompt`."""
  prompts, kv_heads, _, n = x.shape
  x = x.reshape(prompts, kv_heads, slots // prompts, -1, n)
  return jnp.moveaxis(x, 2, 1).reshape(slots, kv_heads, -1, n)


def score(spec: AttentionSpec, q: Array, keys: Stored) -> Array:
  """Returns the scores `[n, K, M, length]` float32 of scaled queries `[n, K, M, d]`."""
  z = jnp.einsum(
    "skmd,skdl->skml",
    q,
    keys.x.astype(q.dtype),
    precision=precision(q.dtype),
    preferred_element_type=jnp.float32,
  )
  return soft_cap(z if keys.scale is None else z * keys.scale, spec.soft_cap)


def mix(weights: Array, values: Stored, dtype: jnp.dtype) -> Array:
  """Returns the sum of values weighted by `[n, K, M, length]`: `[n, K, M, d]` in `dtype`."""
  if values.scale is not None:
    weights = weights * jnp.moveaxis(values.scale, 2, 3)
  return jnp.einsum(
    "skml,skld->skmd", weights.astype(dtype), values.x.astype(dtype), precision=precision(dtype)
  )
