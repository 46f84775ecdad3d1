"""Parameters that are made whole in a shard_map, and the way back of their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import PartitionSpec as P

from grpo_jax.models import shards
from grpo_jax.models.layers import lookup

MESH = (1, 4, 2, 1)  # eight shards of one row each


def summed(axes, spec, x, weights):
  """The sum over shards of (x made whole) * the shard's weights, `[8, 4]` in all."""

  def local(x, w):
    whole = shards.gather({"w": x}, {"w": spec}, axes, "bfloat16")["w"]
    return (whole.astype(jnp.float32) * w).sum()[None]

  names = ("fsdp", "group")
  run = jax.shard_map(
    local,
    mesh=tiny.layout(MESH).mesh,
    in_specs=(shards.spec_over(spec, axes), P(names)),
    out_specs=P(names),
    axis_names=set(axes),
    check_vma=False,
  )
  return run(x, weights).sum()


@pytest.mark.parametrize("spec", [P(("fsdp", "group"), None), P(None, "group")])
def test_what_is_sent_is_rounded_and_gradients_are_summed_in_float32(spec):
  """One shard's gradient is 256 and the others' 1: summed in bfloat16 that would stay 256."""
  x = jnp.full((8, 4), 1 + 2.0**-10)  # bfloat16 has eight bits
  weights = jnp.ones((64, 4)).at[:8].set(256.0)  # [8, 4] of each shard
  run = functools.partial(summed, ("replica", "fsdp", "group"), spec)
  value, gradient = jax.jit(jax.value_and_grad(run))(x, weights)
  assert value == weights.sum()  # of x rounded to 1
  assert gradient.dtype == jnp.float32
  np.testing.assert_array_equal(gradient, np.full((8, 4), 256 + 7))


def test_a_frequent_token_gets_the_whole_of_its_gradient():
  """As above: 300 terms of 1 in bfloat16."""
  table, tokens = jnp.zeros((3, 2), jnp.bfloat16), jnp.zeros(301, jnp.int32).at[0].set(2)
  gradient = jax.grad(lambda table: lookup(table, tokens).astype(jnp.float32).sum())(table)
  assert gradient.dtype == jnp.bfloat16
  np.testing.assert_array_equal(gradient.astype(np.float32), [[300] * 2, [0] * 2, [1] * 2])


def test_the_part_of_a_spec():
  spec = P("tensor", ("fsdp", "group"), None)
  assert shards.spec_over(spec, ("replica", "fsdp")) == P(None, ("fsdp",), None)
  assert shards.spec_over(spec, ("tensor",)) == P(("tensor",), None, None)
