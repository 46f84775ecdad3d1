"""What the sampler's slots attend to, stored; and their attention.

A slot decodes one completion. In each layer it sees two stores of keys and values: those of its
prompt, which are computed once, and a ring of L columns that holds its own past. All slots write
one common column of their rings, `step mod L`, so that the write is one in-place slice and no
scatter; a mask keeps each slot to the columns that it wrote itself.

    slot   prompt         ring, L = 6, when step 8 writes column 2 (numbers: tokens of the slot's completion)
    0      a b c d . .    3 4 5 - 1 2     age 5: it was filled at step 4
    1      e f . . . .    1 2 3 - - -     age 3: it was filled at step 6; what its last completion left is not seen

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
from grpo_jax.types import Array

MOST_BLOCKS = 4  # of a ring: each skips a quarter of the columns that are not written yet
MOST_LAYERS = 64  # that are compiled: the decoding loop is compiled once for each block
LEAST_COLUMNS = 32  # of a block: fewer are not worth a loop of their own


class Stored(NamedTuple):
  """Keys or values in the dtype of a cache."""

  x: Array
  scale: Array | None  # int8: float32, what 1 stands for; one for each vector of head_dim numbers


class StoredKV(NamedTuple):
  """Keys and values of one layer. Keys are transposed: the fastest to read for few queries."""

  keys: Stored  # [n, K, d, length]
  values: Stored  # [n, K, length, d]


class LayerCache(NamedTuple):
  """What the slots attend to in one layer.

  The ring lies in blocks: those that are not written yet need not be read, and the others are read
  side by side.
  """

  prompt: StoredKV  # n = S / C, length Lp: slots C * i to C * i + C - 1 read the entry i
  ring: list[StoredKV]  # a block each; n = S, length B, where all B add up to L


def store(x: Array, dtype: str, axis: int) -> Stored:
  """Returns x in a cache's dtype; `axis` is that of head_dim, over which int8 has one scale."""
  if dtype != "int8":
    return Stored(x.astype(dtype), None)
  scale = jnp.max(jnp.abs(x.astype(jnp.float32)), axis, keepdims=True) / 127
  return Stored(jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale)


def write(buffer: Stored, new: Stored, start: tuple) -> Stored:
  """Returns `buffer` with `new` in it, from the indices `start` on."""
  return jax.tree.map(lambda old, x: jax.lax.dynamic_update_slice(old, x, start), buffer, new)


def store_prompts(kv: KV, dtype: str) -> list[StoredKV]:
  """Returns keys and values of prompts `[layers, P, Lp, K, d]` as caches hold them, one entry for
  each layer.
  """
  return [
    StoredKV(
      store(jnp.transpose(k, (0, 2, 3, 1)), dtype, 2),
      store(jnp.transpose(v, (0, 2, 1, 3)), dtype, 3),
    )
    for k, v in zip(kv.keys, kv.values)
  ]


def empty(n: int, kv_heads: int, head_dim: int, length: int, dtype: str) -> StoredKV:
  """Returns a store `[n, ...]` of `length` tokens that holds zeros."""
  keys, values = (
    jnp.zeros((n, kv_heads, head_dim, length)),
    jnp.zeros((n, kv_heads, length, head_dim)),
  )
  return StoredKV(store(keys, dtype, 2), store(values, dtype, 3))


def ring_blocks(length: int, layers: int) -> tuple[tuple[int, int], ...]:
  """Returns (first column, past the last one) of each block of a ring of `length` columns."""
  n = max(1, min(MOST_BLOCKS, MOST_LAYERS // layers, length // LEAST_COLUMNS))
  edges = [length * i // n for i in range(n + 1)]
  return tuple(zip(edges, edges[1:]))


def copy_prompt(cache: LayerCache, prompts: StoredKV, prompt: Array, slot: Array) -> LayerCache:
  """Returns the cache where `slot` (an index, `[]`) has its own copy of the keys and values of
  `prompt` (`[]`).
  """
  one = jax.tree.map(lambda x: x[prompt][None], prompts)
  return cache._replace(
    prompt=StoredKV(*(write(old, new, (slot, 0, 0, 0)) for old, new in zip(cache.prompt, one)))
  )


def write_token(cache: LayerCache, block: int, column: Array, k: Array, v: Array) -> LayerCache:
  """Returns the cache with k and v `[S, K, d]` of one token of each slot in that column (`[]`) of a
  block.
  """
  keys, values = cache.ring[block]
  keys = write(keys, store(k[..., None], keys.x.dtype.name, 2), (0, 0, 0, column))
  values = write(values, store(v[:, :, None], values.x.dtype.name, 3), (0, 0, column, 0))
  return cache._replace(
    ring=[StoredKV(keys, values) if i == block else kept for i, kept in enumerate(cache.ring)]
  )


def visible(
  spec: AttentionSpec,
  prompt_lengths: Array,
  age: Array,
  width: int,
  behind: Array,
  blocks: Sequence[tuple[int, int]],
) -> list[Array]:
  """Returns what the newest token of each slot may attend to.

  Args:
    spec: of the layer; its window counts tokens back from the newest one, itself included.
    prompt_lengths: `[S]` tokens of each slot's prompt.
    age: `[S]` tokens of each slot's completion, the newest included; its position is prompt_lengths
      + age - 1.
    width: Lp.
    behind: `[L]` steps since each column of the ring was written: in a slot that wrote it, how many
      tokens back.
    blocks: of the ring that are read.

  Returns:
    bool: of the prompt `[S, Lp]`, then of each block `[S, B]`.
  """
  of_prompt = jnp.arange(width) < prompt_lengths[:, None]
  reach = age
  if spec.window:
    of_prompt &= jnp.arange(width) > (prompt_lengths + age - 1 - spec.window)[:, None]
    reach = jnp.minimum(age, spec.window)
  return [of_prompt, *(behind[begin:end] < reach[:, None] for begin, end in blocks)]


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
  """Returns the attention of one token of each slot to its prompt and to its own past, itself
  included.

  One softmax goes over the prompt's keys and those of the ring.

  Args:
    spec: the scale of queries and the soft cap of scores; its window is in the masks.
    cache: of the layer.
    block, column: where the ring is written, for all slots: which block, and where in it (`[]`).
    masks: see `visible`; of the blocks that are read, the first ones of the ring.
    q: `[S, K * M, d]`; k, v: `[S, K, d]`, of the token.

  Returns:
    `[S, K * M, d]`, and the cache with k and v in it.
  """
  s, kv_heads, d = k.shape
  cache = write_token(cache, block, column, k, v)
  q_SxKxMxd = (q * spec.scale_of(d)).reshape(s, kv_heads, -1, d)
  q_by_prompt = by_prompt(q_SxKxMxd, cache.prompt.keys.x.shape[0])
  read = cache.ring[: len(masks) - 1]
  scores = [by_slot(score(spec, q_by_prompt, cache.prompt.keys), s)]
  scores += [score(spec, q_SxKxMxd, kv.keys) for kv in read]
  scores = [jnp.where(mask[:, None, None], x, MASKED) for x, mask in zip(scores, masks)]
  top = functools.reduce(jnp.maximum, [x.max(-1, keepdims=True) for x in scores])
  # of the prompt and of each block: [S, K, M, Lp or B]
  weights = [jnp.exp(x - top) for x in scores]
  of_prompt = mix(by_prompt(weights[0], cache.prompt.keys.x.shape[0]), cache.prompt.values, q.dtype)
  out = sum((mix(x, kv.values, q.dtype) for x, kv in zip(weights[1:], read)), by_slot(of_prompt, s))
  out = out / sum(x.sum(-1) for x in weights)[..., None].astype(out.dtype)
  return out.reshape(s, -1, d), cache


def by_prompt(x_SxKxMxn: Array, prompts: int) -> Array:
  """Returns `[S, K, M, n]` as `[S / C, K, C * M, n]`: the slots of a prompt share one product with
  its keys.
  """
  s, kv_heads, _, n = x_SxKxMxn.shape
  x = x_SxKxMxn.reshape(prompts, s // prompts, *x_SxKxMxn.shape[1:])
  return jnp.moveaxis(x, 1, 2).reshape(prompts, kv_heads, -1, n)


def by_slot(x: Array, slots: int) -> Array:
  """Returns `[S / C, K, C * M, n]` as `[S, K, M, n]`; undoes `by_prompt`."""
  prompts, kv_heads, _, n = x.shape
  x = x.reshape(prompts, kv_heads, slots // prompts, -1, n)
  return jnp.moveaxis(x, 2, 1).reshape(slots, kv_heads, -1, n)


def score(spec: AttentionSpec, q: Array, keys: Stored) -> Array:
  """Returns the scores `[n, K, M, length]` float32 of queries `[n, K, M, d]`, which are scaled
  already.
  """
  z = jnp.einsum("skmd,skdl->skml", q, keys.x.astype(q.dtype), preferred_element_type=jnp.float32)
  return soft_cap(z if keys.scale is None else z * keys.scale, spec.soft_cap)


def mix(weights: Array, values: Stored, dtype: jnp.dtype) -> Array:
  """Returns the values weighted by `[n, K, M, length]` and added up: `[n, K, M, d]` in `dtype`."""
  if values.scale is not None:
    weights = weights * jnp.moveaxis(values.scale, 2, 3)
  return jnp.einsum("skml,skld->skmd", weights.astype(dtype), values.x.astype(dtype))
