"""Supervised fine-tuning."""

import objective_cases as cases
import pytest

from grpo_jax.objectives import (
  distill_offline,
  sft,
)
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("objective", [sft, distill_offline])
def test_supervised(objective):
  r = cases.rollouts()
  batch, cfg = prepared(objective, r)
  check(objective, cases.outputs(r), batch, cfg, 1.0)
