"""The text of a compiled program."""

import pytest
from collectives_test import BY_HAND

from grpo_jax.plan import collectives, hlo


def test_a_kernels_own_lines_end_no_computation():
  assert list(hlo.parse(BY_HAND).computations["second"]) == ["q", "kernel", "all-gather.2"]


@pytest.mark.parametrize(
  "type_, size",
  [
    ("bf16[8,128]{1,0:T(8,128)(2,1)}", 2048),
    ("(f32[2,3], (s8[5], pred[7]), token[])", 36),
    ("s4[6]", 3),
    ("f8e4m3fn[4]", 4),
    ("u32[]{:S(2)}", 4),
  ],
)
def test_sizes(type_, size):
  assert hlo.size(type_) == size


def test_what_is_no_program_is_refused():
  with pytest.raises(ValueError, match="no ENTRY"):
    collectives.collectives("HloModule nothing", 8)
