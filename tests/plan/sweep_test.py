"""Other settings, ranked."""

import jax
import pytest
from plans import MESHES, made, plan_of, small

from experiments import gsm8k
from grpo_jax.plan import programs, sweep
from grpo_jax.plan.chips import GIB
from grpo_jax.setup.experiment import changed, make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


def test_a_sweep_tries_each_mesh_before_a_second_choice():
  c = gsm8k.get_config("model=qwen3_0.6b")
  tried = list(sweep.candidates(make(c), 8, 1))
  meshes = [(s["mesh.tensor"], s["mesh.group"]) for s in tried]
  first = list(dict.fromkeys(meshes))
  assert meshes[: len(first)] == first and (1, 1) in first and (2, 4) in first
  assert tried[0]["learner.microbatch"] == 8 and len({tuple(s.items()) for s in tried}) == len(
    tried
  )
  for settings in tried:
    made = changed(make(c), settings)
    assert made.learner.microbatch == settings["learner.microbatch"]


def test_a_sweep_puts_what_fits_before_what_is_faster(workload):
  settings = {"mesh.tensor": 1, "mesh.group": 1, "learner.microbatch": 8, "learner.chunk": 16}
  fits = plan_of(workload, made("learn"), made("sample"))
  large = plan_of(workload, made("learn", needs=17 * GIB), made("sample"))
  rows = [sweep.Row(settings | {"mesh.tensor": 2}, large), sweep.Row(settings, fits)]
  lines = [
    line
    for line in sweep.page(rows, 16 * GIB, "command").splitlines()
    if line.startswith(("| yes", "| no"))
  ]
  assert [line[:9] for line in lines] == ["| yes | 1", "| no | 2 "]
