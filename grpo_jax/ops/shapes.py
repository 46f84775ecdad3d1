"""Refuses shapes that do not fit, by an AssertionError while a function is traced.

numpy aligns shapes at the end, so [P, G] passes for [1, P, G] wherever the sizes happen to agree.
In this folder no array gets a new leading dimension: arrays have one rank, and only a dimension of
1 or a plain number is repeated.
"""

import chex
import jax.numpy as jnp

from grpo_jax.types import Array


def assert_same(*arrays: Array | float) -> None:
  """Checks that all arrays have one shape; a plain number counts as an array of shape ()."""
  chex.assert_equal_shape([jnp.asarray(x) for x in arrays])


def assert_broadcast(*arrays: Array | float) -> None:
  """Checks that ranks are equal and every dimension is equal or 1; numbers fit everything."""
  shapes = [shape for shape in map(jnp.shape, arrays) if shape]
  if len({len(shape) for shape in shapes}) > 1:
    raise AssertionError(f"ranks that differ: {shapes}")
  if any(len({*sizes} - {1}) > 1 for sizes in zip(*shapes)):
    raise AssertionError(f"dimensions that are neither equal nor 1: {shapes}")
