"""Distillation from a teacher."""

import objective_cases as cases
import pytest

from grpo_jax.objectives import distill
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_distill_is_the_log_ratio_to_the_teacher():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(distill, r)
  check(distill, out, batch, cfg, r.ref_logprobs - out.logprobs)
