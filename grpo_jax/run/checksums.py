"""Computes checksums of arrays, which show damage in a checkpoint and identify a reference.

A checksum is 32 bits of an array's bits and their places, computed on its devices and the same on
any mesh. If any single number changes, it changes: every step below maps different inputs to
different outputs, all else being equal. It is no protection against someone who wants two arrays to
have the same.
"""

import math

import jax
import jax.numpy as jnp

from grpo_jax.aliases import Tree

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_FOLD = 16  # rows that are added up at a time


def checksums(tree: Tree) -> dict[str, str]:
  """Returns eight hexadecimal digits for every leaf of `tree`, by its path with dots.

  It reads the arrays once: 0.06 s for a GB on two CPU cores.
  """
  sums = {}
  for path, leaf in jax.tree.leaves_with_path(tree):
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    # Wait for each: programs that communicate between the simulated devices of a CPU block one
    # another when many run.
    sums[name] = f"{int(jax.device_get(_checksum(leaf))):08x}"
  return sums


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
  """Returns the checksum of an array, a uint32; sums modulo 2^32 do not depend on their order."""
  bits = x if x.dtype == bool else jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize])
  bits = bits.astype(jnp.uint32)
  # Twice sixteen rows become one, at the speed of memory; the rest is mixed well and added up.
  for _ in range(2):
    bits = _folded(bits)
  place = jnp.zeros(bits.shape, jnp.uint32)
  for axis, size in enumerate(bits.shape):
    place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
  mixed = bits ^ (place * jnp.uint32(0x9E3779B9))
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):  # MurmurHash3's last step
    mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
  return jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32)


def _folded(bits: jax.Array) -> jax.Array:
  """Adds up each k <= 16 neighbouring rows with odd factors; [..., a, b] -> [..., a / k, b]."""
  rows = math.gcd(bits.shape[-2], _FOLD) if bits.ndim > 1 else 1
  if rows == 1:
    return bits
  *leading, a, b = bits.shape
  split = (bits ^ (bits >> 16)).reshape(*leading, a // rows, rows, b)
  factor = 2 * jax.lax.broadcasted_iota(jnp.uint32, split.shape, split.ndim - 2) + 1
  return jnp.sum(split * factor, axis=-2, dtype=jnp.uint32)
