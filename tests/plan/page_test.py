"""The page of a plan."""

import dataclasses

import jax
import pytest
from plans import MESHES, made, plan_of, small

from grpo_jax.plan import page, programs
from grpo_jax.plan.chips import GIB
from grpo_jax.plan.collectives import Collective
from grpo_jax.setup.experiment import make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


def test_a_page(workload):
  text = page.text(plan_of(workload, made("learn"), made("sample"), price=2.0))
  assert (
    "**It fits**" in text
    and "| **step** |" in text
    and "at 2 a chip-hour" in text
    and "\n\n\n\n" not in text
  )
  known = (Collective("all-gather", 10**9, 4, False, 3, (), "transpose(", ("token_stats",)),)
  text = page.text(
    plan_of(workload, dataclasses.replace(made("learn"), collectives=known), made("sample"))
  )
  assert "| head, backward pass | all-gather | 3.000 | 100.0% | 2.250 |" in text


def test_what_does_not_fit_says_what_would_help(workload):
  text = page.text(
    plan_of(workload, made("learn"), made("sample", needs=17 * GIB, error="out of memory: 17 G"))
  )
  assert (
    "**It does not fit.**" in text and "sampler.slots" in text and "out of memory: 17 G" in text
  )
  assert "a lower learner" not in text
  text = page.text(
    plan_of(workload, dataclasses.replace(made("learn"), temporaries=20 * GIB), made("sample"))
  )
  assert "**It does not fit.**" in text and "model.remat=block" in text
