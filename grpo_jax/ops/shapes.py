"""How the functions of this folder refuse shapes that do not fit.

numpy's broadcasting lines shapes up at the end, so that [P, G] passes for [1, P, G] wherever the
sizes happen to agree. Here no array is given a new leading dimension: arrays have one rank, and
only a dimension of 1 or a plain number is repeated. A wrong shape raises an AssertionError, as
chex's do, while a function is traced.
"""

import chex
import jax.numpy as jnp

from grpo_jax.types import Array


def assert_same(*arrays: Array | float) -> None:
  """Checks that all arrays have one shape; a plain number counts as an array of shape ().

  Raises:
    AssertionError: the shapes differ.
  """
  chex.assert_equal_shape([jnp.asarray(x) for x in arrays])


def assert_broadcast(*arrays: Array | float) -> None:
  """Checks that the arrays broadcast without a new dimension: equal ranks, every dimension equal or
  1.

  Args:
    *arrays: plain numbers and arrays of shape () fit everything.

  Raises:
    AssertionError: ranks or dimensions differ.
  """
  shapes = [shape for shape in map(jnp.shape, arrays) if shape]
  if len({len(shape) for shape in shapes}) > 1:
    raise AssertionError(f"ranks that differ: {shapes}")
  if any(len({*sizes} - {1}) > 1 for sizes in zip(*shapes)):
    raise AssertionError(f"dimensions that are neither equal nor 1: {shapes}")
