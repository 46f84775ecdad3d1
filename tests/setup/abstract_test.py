"""Functions traced with shapes in place of arrays."""

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup.abstract import Sizes, trace

SIZES = Sizes(P=2, G=3, L=5)


def test_arrays_and_shapes_by_their_letters():
  assert SIZES.array("PGL").shape == (2, 3, 5) and SIZES.array("PG", jnp.int32).dtype == jnp.int32
  assert SIZES.expects("PGL", "PG") == "[P, G, L] = [2, 3, 5] or [P, G] = [2, 3]"


@pytest.mark.parametrize(
  ("value", "said"),
  [
    (None, "None"),
    (1, "an int"),
    ([], "a list"),
    (jnp.zeros((2, 3)), "float32[2, 3], which is [P, G]"),
    (jnp.zeros((7,), bool), "bool[7]"),
    ((None, 1.0), "(None, a float)"),
  ],
)
def test_values_in_a_few_words(value, said):
  assert SIZES.describe(value) == said


def test_what_fits():
  assert SIZES.fits(jnp.zeros((2, 3)), "PGL", "PG") and not SIZES.fits(jnp.zeros((3, 2)), "PG")
  assert SIZES.fits(jnp.zeros((2,), int), "P") and not SIZES.fits(jnp.zeros((2,), complex), "P")
  assert not SIZES.fits(jnp.zeros((2,), int), "P", kind=jnp.floating) and not SIZES.fits(1.0, "P")


def traced(function):
  def fits(value):
    return SIZES.fits(value, "PG")

  return trace("a='b'", SIZES, "f", function, SIZES.expects("PG"), fits, SIZES.array("PGL"), 0.5)


def test_a_function_is_traced_with_its_settings():
  result = traced(lambda x, scale: scale * x.sum(-1))
  assert isinstance(result, jax.ShapeDtypeStruct) and result.shape == (2, 3)


@pytest.mark.parametrize(
  ("function", "said"),
  [
    (lambda x, scale: None, "returned None: is a `return` missing\\?"),
    (lambda x, scale: x, r"returned float32\[2, 3, 5\]"),
    (lambda x, scale: scale, "returned a float"),
    (lambda x, scale: (x, {"loss": x}), "returned the metric 'loss' as float32"),
    (lambda x, scale: x + jnp.zeros(4), "failed, ValueError: Incompatible shapes"),
  ],
)
def test_what_does_not_fit_is_one_line(function, said):
  with pytest.raises(SettingError, match=rf"^a='b': f \(.*{said}.*\[P, G\] = \[2, 3\]"):
    traced(function)
