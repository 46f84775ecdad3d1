"""Int8 matrices with one scale for each output channel, in which the sampler may hold weights.

A number is rounded to the nearest of 255 steps between minus and plus the largest of its row, so
that it is off by at most half a step. LLM.int8() (arXiv 2208.07339) has such scales; here only
weights are rounded. The product (`layers.linear`) converts the steps and multiplies its result by
the scales.
"""

import functools
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from grpo_jax.models.shape import Leaf, Params
from grpo_jax.types import Array

T = TypeVar("T")

MOST = 127  # steps of the largest number of a row


class Int8(NamedTuple, Generic[T]):
  """Holds a matrix as `x * scale`, or the shardings of both."""

  x: T  # [out, in] int8
  scale: T  # [out] float32, size of a step


def rounded(matrix: Array) -> Int8[Array]:
  """Returns a matrix `[out, in]` in int8; a row of zeros has the scale 0."""
  matrix = matrix.astype(jnp.float32)
  scale = jnp.max(jnp.abs(matrix), axis=1) / MOST
  steps = jnp.round(matrix / jnp.where(scale == 0, 1.0, scale)[:, None])
  return Int8(steps.astype(jnp.int8), scale)


def round_layer(params: Params) -> Params:
  """Returns the parameters of one layer with its matrices in int8, all else unchanged."""
  return jax.tree_util.tree_map_with_path(functools.partial(_if_matrix, rounded), params)


def layer_shardings(shardings: Params) -> Params:
  """Returns the shardings of the quantized layer; a scale is sharded like its row."""
  return jax.tree_util.tree_map_with_path(functools.partial(_if_matrix, _shard_alike), shardings)


def cast(params: Params, dtype: str) -> Params:
  """Returns parameters in `dtype`, except int8 matrices, which stay as they are."""
  return jax.tree.map(lambda x: x if is_int8(x) else x.astype(dtype), params, is_leaf=is_int8)


def is_int8(node: object) -> bool:
  """Returns whether a node of a parameter tree is an int8 matrix."""
  return isinstance(node, Int8)


def _if_matrix(fn: Callable[[Leaf], Int8], path: tuple, leaf: Leaf) -> Leaf:
  """Returns `fn(leaf)` for the weight of a projection, and any other leaf as it is."""
  return fn(leaf) if path[-1].key == "weight" else leaf


def _shard_alike(sharding: NamedSharding) -> Int8[NamedSharding]:
  scale = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
  return Int8(sharding, scale)
