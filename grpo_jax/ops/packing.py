"""Where tokens lie: in rows, where each finds its neighbours, and in one list, where nothing is padding.

Attention needs rows: several completions of a group share one (`pack`). All else in a layer, and the head, needs no
neighbours, and is computed on the list of the tokens that are real (`places`, `flatten`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.types import Array, Packing


class Places(NamedTuple):
  """Real tokens of rows as one list for each shard of the mesh: A shards of prompts, B of samples."""

  there: Array  # [A, B, N] int32: the place in the rows of each token of the list; M on what only fills it
  back: Array  # [A, B, M] int32: the inverse; N on padding


class Rows(NamedTuple):
  """Completions laid out for the learner: rows of one prompt, each holding one or several completions; and lists."""

  tokens: Array  # [P, R, T] int32
  segments: Array  # [P, R, T] int32: which sample of the group; -1 on padding
  offsets: Array  # [P, R, T] int32: position of the token in its completion
  at: Places | None = None  # their tokens as lists; None: padding is computed, too
  prompts_at: Places | None = None  # the same of their prompts' tokens


def lay(tokens: Array, lengths: Array, packing: Packing) -> Rows:
  """Completions as rows.

  Args:
    tokens, lengths: `[P, G, L]`, `[P, G]`.
    packing: of `rollouts.pack`. Without `take` a row holds one completion.
  """
  if packing.take is None:
    at = jnp.broadcast_to(jnp.arange(tokens.shape[-1]), tokens.shape)
    return Rows(tokens, jnp.where(at < lengths[..., None], 0, -1), at)
  take = packing.take
  p, _, length = tokens.shape
  flat = jnp.maximum(take, 0).reshape(p, -1)
  laid = jnp.take_along_axis(tokens.reshape(p, -1), flat, axis=1).reshape(take.shape)
  offsets = jnp.where(take < 0, 0, take % length)
  return Rows(laid, jnp.where(take < 0, -1, take // length), offsets)


def unlay(x: Array, packing: Packing, group: int, length: int) -> Array:
  """x `[P, R, T]` of rows -> `[P, G, L]`; padding holds numbers without meaning, or 0."""
  take = packing.take
  if take is None:
    return x
  p = take.shape[0]
  places = jnp.where(take < 0, group * length, take).reshape(p, -1)
  out = jnp.zeros((p, group * length + 1), x.dtype)
  return out.at[jnp.arange(p)[:, None], places].set(x.reshape(p, -1))[:, :-1].reshape(p, group, length)


def places(real: Array, size: int) -> Places:
  """The list of what is real.

  Args:
    real: `[A, B, M]` bool, at most `size` of each M are true.
    size: N.
  """
  count = jnp.cumsum(real, axis=2)
  nth = jax.vmap(jax.vmap(lambda c: jnp.searchsorted(c, jnp.arange(size), side="right")))
  return Places(nth(count), jnp.where(real, count - 1, size))


@jax.custom_vjp
def move(x: Array, there: Array, back: Array) -> Array:
  """x `[A, B, M, ...]` -> `[A, B, N, ...]`, zeros where `there` is out of bounds. `there` and `back` are each other's
  inverse, so that the gradient is a gather as well; the scatter that JAX would make of it is slow everywhere."""
  pick = lambda x, index: jnp.take(x, index, axis=0, mode="fill", fill_value=0)
  return jax.vmap(jax.vmap(pick))(x, there)


def _move(x: Array, there: Array, back: Array) -> tuple[Array, Any]:
  return move(x, there, back), (there, back)


def _move_back(kept: Any, g: Array) -> tuple[Array, None, None]:
  there, back = kept
  return move(g, back, there), None, None


move.defvjp(_move, _move_back)


def flatten(x: Array, at: Places | None) -> Array:
  """x `[A, B, M, ...]` in rows -> `[A, B, N, ...]` in the list; without places, x."""
  return x if at is None else move(x, at.there, at.back)


def unflatten(x: Array, at: Places | None) -> Array:
  """Undoes `flatten`, with zeros on padding."""
  return x if at is None else move(x, at.back, at.there)
