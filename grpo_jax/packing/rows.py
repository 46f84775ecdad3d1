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
  n_prompts, _, length = tokens.shape
  flat = jnp.maximum(index_PxRxT, 0).reshape(n_prompts, -1)
  row_tokens = jnp.take_along_axis(tokens.reshape(n_prompts, -1), flat, axis=1).reshape(
    index_PxRxT.shape
  )
  offsets = jnp.where(index_PxRxT < 0, 0, index_PxRxT % length)
  return Rows(row_tokens, jnp.where(index_PxRxT < 0, -1, index_PxRxT // length), offsets)


def rows_to_completions(x: Array, packing: Packing, group: int, length: int) -> Array:
  """Returns x `[P, R, T]` as `[P, G, L]`; padding holds 0, or anything without a token index."""
  index_PxRxT = packing.token_index
  if index_PxRxT is None:
    return x
  n_prompts = index_PxRxT.shape[0]
  beyond = group * length  # one more place, for what is padding in the rows
  places = jnp.where(index_PxRxT < 0, beyond, index_PxRxT).reshape(n_prompts, -1)
  out = jnp.zeros((n_prompts, beyond + 1), x.dtype)
  out = out.at[jnp.arange(n_prompts)[:, None], places].set(x.reshape(n_prompts, -1))
  return out[:, :-1].reshape(n_prompts, group, length)
