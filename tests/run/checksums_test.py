"""Checksums of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.run.checksums import checksums


@pytest.mark.parametrize("mesh", [(2, 2, 2, 1), (1, 2, 1, 4)])
def test_checksums_do_not_depend_on_the_mesh(mesh):
  here, there = checksums(tiny.params()), checksums(tiny.params(mesh=mesh))
  assert here == there and len(here) == len(jax.tree.leaves(tiny.params()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (6, 3), (2, 64, 5), (512, 2)])
def test_a_checksum_sees_every_single_bit(dtype, shape):
  rng = np.random.default_rng(0)
  raw = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
  raw = raw % 2 if dtype == "bool" else raw
  found = {checksums({"a": jnp.asarray(raw.view(dtype).reshape(shape))})["a"]}
  places = [tuple(rng.integers(0, size) for size in raw.shape) for _ in range(20)]
  changes = {(place, 1 if dtype == "bool" else 1 << rng.integers(8)) for place in places}
  for place, bit in changes:
    changed = raw.copy()
    changed[place] ^= bit
    found.add(checksums({"a": jnp.asarray(changed.view(dtype).reshape(shape))})["a"])
  assert len(found) == 1 + len(changes)


def test_a_checksum_sees_swaps_and_signs():
  x = jnp.arange(1.0, 6145.0).reshape(2, 1024, 3)
  others = [
    x[:, ::-1],
    x[::-1],
    x[..., ::-1],
    -x,
    jnp.zeros_like(x),
    jnp.ones_like(x),
    x.at[:, :16].set(0),
  ]
  found = {checksums({"a": each})["a"] for each in (x, *others)}
  assert len(found) == 8 and "00000000" not in found
