"""Turns completions `[P, G, L]` into rows `[P, R, T]`, and back, on the device.

Everything here is of one shard of the mesh. The picture is in `packing/__init__.py`.
"""

from typing import NamedTuple

import jax.numpy as jnp

from grpo_jax.packing.plan import Packing
from grpo_jax.types import Array


class Rows(NamedTuple):
  """Completions as the learner's attention sees them: R rows of T places for each prompt."""

  tokens: Array  # [P, R, T] int32
  # [P, R, T] int32, the same for tokens of one completion, -1 on padding
  segments: Array
  offsets: Array  # [P, R, T] int32: position of the token in its completion


def completions_to_rows(tokens: Array, lengths: Array, packing: Packing) -> Rows:
  """Returns completions `[P, G, L]` as rows; one completion a row without a token index."""
  if packing.token_index is None:
    offsets = jnp.broadcast_to(jnp.arange(tokens.shape[-1]), tokens.shape)
    return Rows(tokens, jnp.where(offsets < lengths[..., None], 0, -1), offsets)
  index_PxRxT = packing.token_index
  length = tokens.shape[2]
  offsets = jnp.where(index_PxRxT < 0, 0, index_PxRxT % length)
  segments = jnp.where(index_PxRxT < 0, -1, index_PxRxT // length)
  return Rows(values_to_rows(tokens, packing), segments, offsets)


def values_to_rows(x: Array, packing: Packing) -> Array:
  """Returns x `[P, G, L, ...]` as `[P, R, T, ...]`; padding holds the value of some token."""
  if packing.token_index is None:
    return x
  n_prompts, n_rows, width = packing.token_index.shape
  more = x.shape[3:]
  flat = jnp.maximum(packing.token_index, 0).reshape(n_prompts, -1, *(1,) * len(more))
  taken = jnp.take_along_axis(x.reshape(n_prompts, -1, *more), flat, axis=1)
  return taken.reshape(n_prompts, n_rows, width, *more)


def rows_to_completions(x: Array, packing: Packing, group: int, length: int) -> Array:
  """Returns x `[P, R, T, ...]` as `[P, G, L, ...]`.

  Padding holds 0, or anything without a token index.
  """
  index_PxRxT = packing.token_index
  if index_PxRxT is None:
    return x
  n_prompts, more = index_PxRxT.shape[0], x.shape[3:]
  beyond = group * length  # one more place, for what is padding in the rows
  places = jnp.where(index_PxRxT < 0, beyond, index_PxRxT).reshape(n_prompts, -1)
  out = jnp.zeros((n_prompts, beyond + 1, *more), x.dtype)
  out = out.at[jnp.arange(n_prompts)[:, None], places].set(x.reshape(n_prompts, -1, *more))
  return out[:, :-1].reshape(n_prompts, group, length, *more)
