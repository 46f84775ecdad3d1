"""Lengths of completions in a plan."""

import jax
import pytest
from plans import MESHES, small

from grpo_jax.errors import SettingError
from grpo_jax.plan import lengths, programs
from grpo_jax.setup.experiment import changed, make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


@pytest.mark.parametrize("mean", [1, 4, 9, 15, 16])
def test_lengths_have_the_mean_that_is_asked_for(mean):
  c = small(**{"data.prompts": 512})
  drawn = lengths.draw(make(c), mean, 5).completions
  assert abs(drawn.mean() - mean) < 1 and 1 <= drawn.min() and drawn.max() <= 16
  assert (drawn == lengths.draw(make(c), mean, 5).completions).all()


def test_longer_lengths_than_the_config_allows_are_refused():
  with pytest.raises(SettingError, match="--mean-length=17: use 1 to 16"):
    lengths.draw(make(small()), 17, 0)


def test_programs_are_counted(workload):
  few = workload._replace(experiment=changed(workload.experiment, {"steps": 20}))
  assert lengths.count_programs(few, 0, 0) == (1, 1, 1)
  learners, samplers, steps = lengths.count_programs(few, 4, 4)
  assert steps == 20 and 1 < learners < 20 and 1 <= samplers <= 6
