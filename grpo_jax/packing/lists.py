"""Turns prompts and rows into lists of their real tokens, and back, on the device.

Everything here is of one shard of the mesh. The picture is in `packing/__init__.py`.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import Rows
from grpo_jax.types import Array, Prompts


class ListIndex(NamedTuple):
  """Maps the N entries of a list to M places, padding included, and back."""

  place_of_entry: Array  # [N] int32: M on entries that only fill the list
  entry_of_place: Array  # [M] int32, the inverse: N on padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenList:
  """Tokens of an array `[axes of tokens, ...]` as one list."""

  index: ListIndex | None  # None: the list holds all places, padding included
  # the axes of tokens: [P, Lp] or [P, R, T]
  shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

  @property
  def size(self) -> int:
    """Number of entries, N."""
    return math.prod(self.shape) if self.index is None else self.index.place_of_entry.shape[0]

  @property
  def count(self) -> Array | None:
    """Number of entries before those that only fill the list, `[]` int32; None: there are none."""
    if self.index is None:
      return None
    return jnp.sum(self.index.place_of_entry < math.prod(self.shape), dtype=jnp.int32)

  def to_list(self, x: Array) -> Array:
    """Returns x `[axes of tokens, ...]` as `[N, ...]`."""
    x = x.reshape(-1, *x.shape[len(self.shape) :])
    if self.index is None:
      return x
    return gather(x, self.index.place_of_entry, self.index.entry_of_place)

  def from_list(self, x: Array) -> Array:
    """Undoes `to_list`, with zeros on padding that the list does not hold."""
    if self.index is not None:
      x = gather(x, self.index.entry_of_place, self.index.place_of_entry)
    return x.reshape(*self.shape, *x.shape[1:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GroupLists:
  """Joins the tokens of prompts and of their rows into one list, and splits it again."""

  prompts: TokenList  # of [P, Lp]
  rows: TokenList  # of [P, R, T]

  def join(self, x_prompts: Array, x_rows: Array) -> Array:
    """Returns `[P, Lp, ...]` and `[P, R, T, ...]` as one list `[N, ...]`, prompts first."""
    return jnp.concatenate([self.prompts.to_list(x_prompts), self.rows.to_list(x_rows)])

  def split(self, x: Array) -> tuple[Array, Array]:
    """Undoes `join`: a list `[N, ...]` -> `[P, Lp, ...]` and `[P, R, T, ...]`."""
    n = self.prompts.size
    return self.prompts.from_list(x[:n]), self.rows.from_list(x[n:])


def group_lists(prompts: Prompts, rows: Rows, packing: Packing) -> GroupLists:
  """Returns the lists of prompts and of their completions' rows, in the sizes of `packing`."""
  index = None
  if packing.list_size is not None:
    index = list_index(rows.segments.reshape(-1) >= 0, packing.list_size)
  return GroupLists(
    prompt_list(prompts, packing.prompt_list_size), TokenList(index, rows.tokens.shape)
  )


def prompt_list(prompts: Prompts, size: int | None) -> TokenList:
  """Returns the list of the tokens of prompts; without a size it holds the padding."""
  index = None
  if size is not None:
    real = jnp.arange(prompts.tokens.shape[1]) < prompts.lengths[:, None]
    index = list_index(real.reshape(-1), size)
  return TokenList(index, prompts.tokens.shape)


def list_index(real: Array, size: int) -> ListIndex:
  """Returns the list of N = `size` entries for `real [M]` bool, which is true at most N times."""
  count = jnp.cumsum(real)
  # where the count passes 0, 1, 2 ...
  place_of_entry = jnp.searchsorted(count, jnp.arange(size), side="right")
  return ListIndex(place_of_entry, jnp.where(real, count - 1, size))


@jax.custom_vjp
def gather(x: Array, index: Array, inverse: Array) -> Array:
  """Returns x `[M, ...]` at `index [N]`, zeros where that is out of bounds: `[N, ...]`.

  `inverse [M]` undoes it, so that the gradient is a gather, too; JAX's own is a scatter, which is
  slow on every platform.
  """
  return jnp.take(x, index, axis=0, mode="fill", fill_value=0)


def _gather_forward(x: Array, index: Array, inverse: Array) -> tuple[Array, tuple[Array, Array]]:
  return gather(x, index, inverse), (index, inverse)


def _gather_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, None, None]:
  index, inverse = kept
  return gather(g, inverse, index), None, None


gather.defvjp(_gather_forward, _gather_backward)
