"""Adapters of a run and the base under them."""

import pytest
import tiny

from grpo_jax.errors import CheckpointError
from grpo_jax.setup import adapters


def test_the_base_of_a_run_must_stay():
  pin = adapters.check_base(tiny.weights(), {}, "FOLDER")
  assert adapters.check_base(tiny.weights(), pin, "FOLDER") == pin
  other = tiny.weights() | {"final_norm": {"scale": tiny.weights()["final_norm"]["scale"] + 1e-3}}
  with pytest.raises(CheckpointError, match="init_from='FOLDER': does not hold the parameters"):
    adapters.check_base(other, pin, "FOLDER")
