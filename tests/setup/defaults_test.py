"""The config that an experiment starts from."""

import pytest

from grpo_jax.config import sections
from grpo_jax.setup import defaults, registry


def test_a_config_has_the_settings_of_every_data_set():
  c = defaults.get_config()
  for name in sections.DATA_SETS:
    assert c.data[name].to_dict() == registry.data(name).settings().to_dict()


@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo"])
def test_an_objective_has_its_own_settings(name):
  section = defaults.objective(name, defaults.get_config())
  assert section.name == name
  assert set(section) == {"name", *registry.objective_defaults(name)}


def test_the_longest_completion_of_an_objective_follows_the_sampler_s():
  c = defaults.get_config()
  c.objective = defaults.objective("grpo", c)
  c.sampler.max_length = 77
  assert c.objective.max_length == 77


def test_configs_share_nothing():
  one, other = defaults.get_config(), defaults.get_config()
  one.learner.lr, one.data.arithmetic.size = 7.0, 7
  assert other.learner.lr != 7.0 and other.data.arithmetic.size != 7
