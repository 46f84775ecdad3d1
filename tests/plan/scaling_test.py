"""More chips."""

import jax
import pytest
from plans import MESHES, made, plan_of, small

from experiments import gsm8k
from grpo_jax.errors import SettingError
from grpo_jax.plan import programs, scaling
from grpo_jax.setup.experiment import make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


def test_scaling_keeps_the_load_of_a_chip():
  c = gsm8k.get_config("model=qwen3_0.6b")
  found = scaling.at_size(make(c), "v5e:2x4", "v5e:16x16", 4)
  assert (found.data.prompts, found.learner.microbatch, found.sampler.slots) == (4096, 1024, 32768)
  assert found.mesh.replica == 4 and c.data.prompts == 32
  c.sampler.carry = 8
  assert scaling.at_size(make(c), "v5e:2x4", "v5e:4x4", 1).sampler.carry == 16
  c.data.prompts = 33
  with pytest.raises(SettingError, match="data.prompts=33 with --scaling"):
    scaling.at_size(make(c), "v5e:2x4", "v5e:2x2", 1)


def test_scaling_has_a_row_and_a_point_for_each_size(workload, tmp_path):
  plans = [plan_of(workload, made("learn"), made("sample"))] * 2
  scaling.draw(plans, tmp_path / "docs" / "scaling.png")
  assert (tmp_path / "docs" / "scaling.png").read_bytes()[:4] == b"\x89PNG"
  text = scaling.page(plans, "command", "scaling.png")
  assert text.count("\n| 8 | 1 | 8 |") == 2 and "](scaling.png)" in text
