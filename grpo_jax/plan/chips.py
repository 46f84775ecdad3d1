"""Lists what a chip of each TPU family has, as published, and what its compiler lets programs use.

Sources: the pages of Cloud TPU on v4, v5e, v5p, v6e and TPU7x (docs.cloud.google.com/tpu/docs/v5e
and so on, the table of key specifications) for peak bfloat16 FLOP/s, HBM and its bandwidth,
bidirectional bandwidth of the links between chips, and bandwidth of the data-centre network. Two
numbers are not on them: the links of v4, 2,400 Gbit/s each way in all according to the announcement
of v5p, and the network of v4, assumed to be v5p's. `usable` is what libtpu 0.0.42 reports when a
program asks for more.
"""

import re
from typing import NamedTuple

from grpo_jax.errors import SettingError

GIB = 2**30


class Chip(NamedTuple):
  """A chip's sizes in bytes and its rates in bytes or operations a second."""

  flops: float  # bfloat16, peak
  hbm: float  # bytes
  usable: float  # bytes of HBM that a program may use on one device
  hbm_rate: float
  links: int  # ports to neighbours: 4 on a two-dimensional torus, 6 on a three-dimensional one
  link_rate: float  # of one port, one way
  network_rate: float  # between slices
  devices: int  # as which JAX shows one chip


CHIPS = {
  "v4": Chip(275e12, 32 * GIB, 30.75 * GIB, 1200e9, 6, 50e9, 6.25e9, 1),
  "v5e": Chip(197e12, 16 * GIB, 15.75 * GIB, 819e9, 4, 50e9, 3.125e9, 1),
  "v5p": Chip(459e12, 95 * GIB, 95.74 * GIB, 2765e9, 6, 100e9, 6.25e9, 1),
  "v6e": Chip(918e12, 32 * GIB, 31.25 * GIB, 1638e9, 4, 100e9, 12.5e9, 1),
  "tpu7x": Chip(2307e12, 192 * GIB, 94.75 * GIB, 7380e9, 6, 100e9, 12.5e9, 2),
}


def find_chip(topology: str) -> Chip:
  """Returns the chip of a topology such as "v5e:2x4"."""
  family, _, shape = topology.partition(":")
  if family not in CHIPS or not re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*)*", shape):
    raise SettingError(
      f"--topology={topology}: use FAMILY:SHAPE with one of {', '.join(CHIPS)}, as in v5e:2x4, "
      "v6e:16x16 or v5p:4x4x2"
    )
  return CHIPS[family]
