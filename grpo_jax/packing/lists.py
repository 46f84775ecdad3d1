"""Prompts and rows to lists of their real tokens, and back, on the device. The picture is in `packing/__init__.py`.

Each shard of the mesh has lists of its own: A shards of prompts times B shards of samples. A prompt's tokens are in the
list of each of its B shards of samples, which compute it for their own completions.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import Rows
from grpo_jax.sharding import Layout
from grpo_jax.types import Array, Prompts


class ListIndex(NamedTuple):
  """Which of a shard's M places, padding included, are the N entries of its list."""

  place_of_entry: Array  # [A, B, N] int32: M on entries that only fill the list
  entry_of_place: Array  # [A, B, M] int32, the inverse: N on padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardLists:
  """The tokens of an array `[P, B, ...]` as one list for each shard."""

  index: ListIndex | None  # None: the lists hold all places, padding included
  shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})  # [P, B, axes of tokens]
  prompt_shards: int = dataclasses.field(metadata={"static": True})  # A

  @property
  def size(self) -> int:
    """N, the number of entries of a list."""
    if self.index is not None:
      return self.index.place_of_entry.shape[2]
    return math.prod(self.shape[2:]) * (self.shape[0] // self.prompt_shards)

  def to_list(self, x: Array) -> Array:
    """Returns x `[P, B, axes of tokens, ...]` as `[A, B, N, ...]`."""
    n_prompts, sample_shards = self.shape[:2]
    x = to_shards(x.reshape(n_prompts, sample_shards, -1, *x.shape[len(self.shape) :]), self.prompt_shards)
    if self.index is None:
      return x
    return gather(x, self.index.place_of_entry, self.index.entry_of_place)

  def from_list(self, x: Array) -> Array:
    """Undoes `to_list`, with zeros on padding (but for lists that hold the padding)."""
    if self.index is not None:
      x = gather(x, self.index.entry_of_place, self.index.place_of_entry)
    x = from_shards(x, self.shape[0])
    return x.reshape(*self.shape, *x.shape[3:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GroupLists:
  """Joins the tokens of prompts and of their completions' rows into one list for each shard, and splits them again."""

  prompts: ShardLists  # of [P, B, Lp]
  rows: ShardLists  # of [P, B, R / B, T]

  def share_prompts(self, x: Array) -> Array:
    """Returns x `[P, ...]` for every shard of samples: `[P, B, ...]`."""
    return jnp.broadcast_to(x[:, None], (*self.prompts.shape[:2], *x.shape[1:]))

  def split_rows(self, x: Array) -> Array:
    """Returns x `[P, R, T, ...]` by shards of samples: `[P, B, R / B, T, ...]`."""
    return x.reshape(*self.rows.shape, *x.shape[3:])

  def join(self, x_prompts: Array, x_rows: Array) -> Array:
    """Returns `[P, B, Lp, ...]` and `[P, B, R / B, T, ...]` as lists `[A, B, N, ...]`: of prompts, then of rows."""
    return jnp.concatenate([self.prompts.to_list(x_prompts), self.rows.to_list(x_rows)], axis=2)

  def split(self, x: Array) -> tuple[Array, Array]:
    """Undoes `join`: lists `[A, B, N, ...]` -> `[P, B, Lp, ...]` and `[P, B, R / B, T, ...]`."""
    n = self.prompts.size
    return self.prompts.from_list(x[:, :, :n]), self.rows.from_list(x[:, :, n:])

  def rows_to_list(self, x: Array) -> Array:
    """Returns x `[P, R, T, ...]` as lists of rows alone, `[A, B, N, ...]`."""
    return self.rows.to_list(self.split_rows(x))

  def list_to_rows(self, x: Array) -> Array:
    """Undoes `rows_to_list`."""
    x = self.rows.from_list(x)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def group_lists(layout: Layout, prompts: Prompts, rows: Rows, packing: Packing) -> GroupLists:
  """Returns the lists of prompts and of their completions' rows, of the sizes that `packing` has.

  Each shard of the mesh has its own, where its axes divide the prompts and the rows of a prompt.
  """
  n_prompts, n_rows, row_width = rows.tokens.shape
  a, b = layout.shards("prompt", n_prompts), layout.shards("sample", n_rows)
  index = None
  if packing.list_size is not None:
    real = rows.segments.reshape(n_prompts, b, -1) >= 0
    index = list_index(to_shards(real, a), packing.list_size)
  of_rows = ShardLists(index, (n_prompts, b, n_rows // b, row_width), a)
  return GroupLists(prompt_lists(prompts, packing.prompt_list_size, a, b), of_rows)


def prompt_lists(prompts: Prompts, list_size: int | None, prompt_shards: int = 1, sample_shards: int = 1) -> ShardLists:
  """Returns the lists of the tokens of prompts alone; without `list_size` they hold the padding."""
  n_prompts, width = prompts.tokens.shape
  a, b = prompt_shards, sample_shards
  index = None
  if list_size is not None:
    lengths = jnp.broadcast_to(prompts.lengths.reshape(a, 1, -1), (a, b, n_prompts // a))
    real = jnp.arange(width) < lengths[..., None]
    index = list_index(real.reshape(a, b, -1), list_size)
  return ShardLists(index, (n_prompts, b, width), a)


def list_index(real: Array, size: int) -> ListIndex:
  """Returns the list of the places that are real, in their order.

  Args:
    real: `[A, B, M]` bool, at most `size` of each M are true.
    size: N.
  """
  count = jnp.cumsum(real, axis=2)
  place_of_entry = jax.vmap(jax.vmap(functools.partial(_nth_places, size)))(count)
  return ListIndex(place_of_entry, jnp.where(real, count - 1, size))


def _nth_places(size: int, count: Array) -> Array:
  """Returns the places `[size]` where the running count `[M]` passes 0, 1, 2 ...; M where it never does."""
  return jnp.searchsorted(count, jnp.arange(size), side="right")


@jax.custom_vjp
def gather(x: Array, index: Array, inverse: Array) -> Array:
  """Returns x `[A, B, M, ...]` at `index [A, B, N]`, zeros where that is out of bounds: `[A, B, N, ...]`.

  `inverse [A, B, M]` undoes it, so that the gradient is a gather as well: the scatter that JAX would make of it is slow
  everywhere.
  """
  return jax.vmap(jax.vmap(_take_or_zero))(x, index)


def _take_or_zero(x: Array, index: Array) -> Array:
  return jnp.take(x, index, axis=0, mode="fill", fill_value=0)


def _gather_forward(x: Array, index: Array, inverse: Array) -> tuple[Array, Any]:
  return gather(x, index, inverse), (index, inverse)


def _gather_backward(kept: Any, g: Array) -> tuple[Array, None, None]:
  index, inverse = kept
  return gather(g, inverse, index), None, None


gather.defvjp(_gather_forward, _gather_backward)


def to_shards(x: Array, prompt_shards: int) -> Array:
  """Returns x `[P, B, n, ...]` as `[A, B, P / A * n, ...]`: the tokens of a shard one after the other."""
  p, b, n, *rest = x.shape
  a = prompt_shards
  return x.reshape(a, p // a, b, n, *rest).swapaxes(1, 2).reshape(a, b, p // a * n, *rest)


def from_shards(x: Array, prompts: int) -> Array:
  """Undoes `to_shards`: x `[A, B, P / A * n, ...]` -> `[P, B, n, ...]`."""
  a, b, n, *rest = x.shape
  p = prompts
  return x.reshape(a, b, p // a, n * a // p, *rest).swapaxes(1, 2).reshape(p, b, n * a // p, *rest)
