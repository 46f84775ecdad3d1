"""Matrices of eight bits a number, with one scale for each output channel: how the sampler may hold
a layer's weights.

A number is rounded to the nearest of 255 steps between minus and plus the largest of its row, so
that it is off by half a step at most (LLM.int8(), arXiv 2208.07339, has such scales; here nothing
is rounded but weights). The product converts the steps inside (`layers.linear`) and multiplies its
result by the scales.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

Array = jax.Array

MOST = 127  # steps of the largest number of a row


class Int8(NamedTuple):
  """A matrix, or where its two arrays lie: x * scale."""

  x: Array  # [out, in] int8
  scale: Array  # [out] float32, what 1 stands for


def rounded(matrix: Array) -> Int8:
  """Returns a matrix `[out, in]` in int8; a row of zeros has the scale 0."""
  matrix = matrix.astype(jnp.float32)
  scale = jnp.max(jnp.abs(matrix), axis=1) / MOST
  return Int8(
    jnp.round(matrix / jnp.where(scale == 0, 1.0, scale)[:, None]).astype(jnp.int8), scale
  )


def round_layer(params: Any) -> Any:
  """Returns the parameters of one layer with its matrices in int8; norms and biases stay as they
  are.
  """
  return jax.tree_util.tree_map_with_path(functools.partial(_if_matrix, rounded), params)


def layer_shardings(shardings: Any) -> Any:
  """Returns where the parameters of `round_layer` lie, from where those of the layer do: a scale
  lies as its row.
  """
  return jax.tree_util.tree_map_with_path(functools.partial(_if_matrix, _cut_alike), shardings)


def cast(params: Any, dtype: str) -> Any:
  """Returns parameters in `dtype`, but for matrices in int8, which stay as they are."""
  return jax.tree.map(lambda x: x if is_int8(x) else x.astype(dtype), params, is_leaf=is_int8)


def is_int8(node: Any) -> bool:
  """Returns whether a node of a tree of parameters is a matrix in int8."""
  return isinstance(node, Int8)


def _if_matrix(fn: Any, path: tuple, leaf: Any) -> Any:
  """Returns `fn(leaf)` of the weight of a projection, any other leaf as it is."""
  return fn(leaf) if path[-1].key == "weight" else leaf


def _cut_alike(sharding: NamedSharding) -> Int8:
  return Int8(sharding, NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1])))
