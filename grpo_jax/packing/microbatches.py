"""Splits a batch into microbatches along its prompts, and joins their results."""

import jax
import jax.numpy as jnp

from grpo_jax.aliases import Tree
from grpo_jax.distributed.sharding import Layout, batch_axes
from grpo_jax.types import Array


def split_microbatches(layout: Layout, tree: Tree, count: int) -> Tree:
  """Cuts every array of a batch along P: `[P, ...]` -> `[count, P / count, ...]`.

  Microbatch j has prompts j, j + count, j + 2 count ..., so that every shard has a part of it.
  """

  def split(x: Array, axes: tuple) -> Array:
    x_MxPx = jnp.moveaxis(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 1, 0)
    return layout.constrain(x_MxPx, None, *axes)

  return jax.tree.map(split, tree, batch_axes(tree))


def join_microbatches(tree: Tree) -> Tree:
  """Undoes `split_microbatches`: `[count, P / count, ...]` -> `[P, ...]`."""
  return jax.tree.map(_join, tree)


def _join(x: Array) -> Array:
  return jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])
