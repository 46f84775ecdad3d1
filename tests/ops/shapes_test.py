"""Shapes that do not fit are refused."""

import jax.numpy as jnp
import pytest

from grpo_jax.ops.shapes import assert_broadcast, assert_same


def arrays(*shapes):
  return [jnp.zeros(shape) for shape in shapes]


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (2, 3)], [(), ()]])
def test_one_shape(shapes):
  assert_same(*arrays(*shapes))


@pytest.mark.parametrize("shapes", [[(2, 3), (3,)], [(2, 3), (2, 1)], [(2, 3), ()]])
def test_several_shapes(shapes):
  with pytest.raises(AssertionError):
    assert_same(*arrays(*shapes))


def test_a_number_is_an_array_without_dimensions():
  assert_same(1.0, jnp.float32(2))
  with pytest.raises(AssertionError):
    assert_same(1.0, jnp.zeros(1))


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 1)], [(1, 3), (2, 1)], [(2, 3), ()], [()]])
def test_dimensions_of_1_are_repeated(shapes):
  assert_broadcast(*arrays(*shapes))


@pytest.mark.parametrize(
  ("shapes", "said"),
  [([(1, 2, 3), (2, 3)], "ranks that differ"), ([(2, 3), (2, 2)], "neither equal")],
)
def test_what_numpy_would_align(shapes, said):
  with pytest.raises(AssertionError, match=said):
    assert_broadcast(*arrays(*shapes))
