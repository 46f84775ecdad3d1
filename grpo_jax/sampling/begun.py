"""Samples that have begun: the tokens that they have so far, and how a slot continues them.

The tokens of all begun samples are computed once, in rows as the learner computes them (picture in
packing/__init__.py). A slot that takes a sample of b tokens gets their keys and values in the b
columns of its ring before the one that is written next. From then on it looks as if it had sampled
them itself. With L = 6, for a sample of b = 3 tokens that is taken at step 8:

    column                       0  1  2  3  4  5
    token of the sample          1  2  .  .  .  0      the next step writes token 3 to column 2

Shape letters: P prompts, G samples of each, N = P * G, L completion tokens, R rows of T places of
each prompt, S slots, K key/value heads, d head_dim.
"""

import dataclasses
import functools
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.packing.lists import group_lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import completions_to_rows, rows_to_completions
from grpo_jax.sampling import kv_cache
from grpo_jax.sampling.kv_cache import Stored, StoredKV
from grpo_jax.types import Array, Prompts, Small


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Begun(Generic[Small]):
  """Holds what the samples of a rollout have so far.

  It may speak of the first prompts of each shard alone, B of them: then the others are fresh.
  Shapes are `[P, G, ...]`, or `[B, G, ...]`.
  """

  tokens: Small  # [P, G, L] int32
  lengths: Small  # [P, G] int32; 0: it has not begun
  unfinished: Small  # [P, G] bool, which samples are to be continued
  limits: Small  # [P, G] int32, the length at which a sample is truncated: lengths + 1 to L
  # [P, G], state of the stop texts after the tokens, see tokenizer/stop_texts.py
  matched: Small
  packing: Packing = dataclasses.field(default_factory=Packing)  # of `tokens`


class Carried(NamedTuple, Generic[Small]):
  """Says which of the prompts of a rollout have to be complete when it ends.

  It ends when these are, and all but `sampler.carry` of all of its prompts. What is left is
  continued by a later rollout.
  """

  # [P] int32, folded into the key in place of each prompt's place in the batch, which may change
  numbers: Small
  due: Small  # [P] bool


class BegunRows(NamedTuple):
  """Keys and values of the tokens of begun samples, and where each sample's are."""

  cache: list[StoredKV]  # of each layer, [P * R, ...] of T places
  row: Array  # [N] int32, in P * R
  start: Array  # [N] int32, the place of a sample's first token in its row
  tokens: Array  # [N, L] int32
  lengths: Array  # [N] int32
  limits: Array  # [N] int32
  matched: Array  # [N]
  unfinished: Array  # [N] bool


def prefill(
  decoder: Decoder, params: Params, prompts: Prompts, begun: Begun[Array], cache_dtype: str
) -> tuple[Array, list[StoredKV], BegunRows]:
  """Returns the last hidden state of each sample `[N, D]`, the prompts' cache, and that of rows.

  The last hidden state of a sample that has not begun is its prompt's. Prompts whose samples are
  all fresh have no rows.

  Args:
    decoder: of one shard, with a list of layers.
    params: of `sampler.decode_params`.
    prompts: `[P, Lp]`.
    begun: of the same shard.
    cache_dtype: of the caches.
  """
  n_prompts, group, length = begun.tokens.shape
  fresh = prompts.lengths.shape[0] - n_prompts
  others = jax.tree.map(lambda x: x[n_prompts:], prompts)
  prompts = jax.tree.map(lambda x: x[:n_prompts], prompts)
  rows = completions_to_rows(begun.tokens, begun.lengths, begun.packing)
  lists = group_lists(prompts, rows, begun.packing)
  (first, hidden), of_prompts, of_rows = decoder.prefill_groups(params, prompts, rows, lists)

  n_rows, width = rows.tokens.shape[1:]
  places = jnp.broadcast_to(jnp.arange(n_rows * width).reshape(n_rows, width), rows.tokens.shape)
  first_place = rows_to_completions(places, begun.packing, group, length)[..., 0]  # [P, G]
  last_place = first_place + jnp.maximum(begun.lengths - 1, 0)
  flat = hidden.reshape(n_prompts, n_rows * width, -1)
  last = jnp.take_along_axis(flat, last_place[..., None], axis=1)
  last = jnp.where((begun.lengths > 0)[..., None], last, first[:, None])

  in_rows = jax.tree.map(lambda x: x.reshape(n_prompts * n_rows, *x.shape[2:]), of_rows)
  first_of_prompt = jnp.arange(n_prompts)[:, None] * n_rows
  last = last.reshape(n_prompts * group, -1)
  if fresh:
    hidden_of_others, of_others = decoder.prefill(params, others)
    last = jnp.concatenate([last, jnp.repeat(hidden_of_others, group, axis=0)])
    of_prompts = jax.tree.map(lambda *x: jnp.concatenate(x), of_prompts, of_others)

  def of_all(x: Array, of_fresh: int = 0) -> Array:
    return jnp.pad(x, [(0, fresh), *[(0, 0)] * (x.ndim - 1)], constant_values=of_fresh).reshape(
      -1, *x.shape[2:]
    )

  return (
    last,
    kv_cache.store_prompts(of_prompts, cache_dtype),
    BegunRows(
      kv_cache.store_prompts(in_rows, cache_dtype),
      of_all(first_of_prompt + first_place // width),
      of_all(first_place % width),
      of_all(begun.tokens),
      of_all(begun.lengths),
      of_all(begun.limits, length),
      of_all(begun.matched),
      of_all(begun.unfinished, 1),
    ),
  )


def ring(
  rows: BegunRows, blocks: tuple[tuple[int, int], ...], sample: Array, step: Array
) -> list[list[StoredKV]]:
  """Returns what the ring of a slot holds when it takes a sample: of each layer, its blocks.

  Columns that hold no token of the sample have no meaning: a slot does not see them before it has
  written them.

  Args:
    rows: of all samples.
    blocks: (first column, end) of each block of the ring.
    sample: `[]`, the sample that the slot takes.
    step: `[]`, the next step, whose column is the first that is written.

  Returns:
    Blocks `[1, K, ...]`, to be written at the slot.
  """
  length = rows.tokens.shape[1]
  token = (jnp.arange(length) - step + rows.lengths[sample]) % length  # of each column
  place = rows.start[sample] + token

  def columns(x: Stored, axis: int, begin: int, end: int) -> Stored:
    take = functools.partial(jnp.take, indices=place[begin:end], axis=axis, mode="clip")
    return jax.tree.map(lambda whole: take(whole[rows.row[sample]])[None], x)

  return [
    [StoredKV(columns(kv.keys, 2, *block), columns(kv.values, 1, *block)) for block in blocks]
    for kv in rows.cache
  ]
