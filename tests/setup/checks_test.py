"""Settings against each other."""

import pytest
import tiny

from experiments import arithmetic
from grpo_jax.errors import SettingError
from grpo_jax.setup import checks, defaults, registry
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve


@pytest.mark.parametrize("name", sorted(arithmetic.OBJECTIVES))
@pytest.mark.parametrize("more", [{}, {"learner.minibatches": 4, "learner.microbatch": 2}])
def test_the_objectives_here_are_as_they_should_be(name, more):
  module, _ = arithmetic.OBJECTIVES[name]
  teacher = ",teacher=x" if registry.objective(module).teacher else ""
  config = arithmetic.get_config(f"objective={name}{teacher}")
  config.update_from_flattened_dict(more)
  resolve(config)


def test_groups_of_one(config):
  config.sampler.group = 1
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.advantage='group_relative' .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective.advantage = f"{__file__}:own"
  checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("ppo", config)  # a critic needs no group
  checks.check(make(config), tiny.decoder())
  config.objective.group_baseline = True
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.group_baseline=True compares .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("target_prob", config)
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.name='target_prob' compares .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("rft", config)
  checks.check(make(config), tiny.decoder())
  config.loop, config.offline.data, config.objective = (
    "offline",
    "pairs",
    defaults.objective("dpo", config),
  )
  with pytest.raises(
    SettingError, match="sampler.group=1 with offline.data='pairs': use at least 2"
  ):
    checks.check(make(config), tiny.decoder())


def own(rollouts):
  """An advantage that needs no group."""
  return rollouts.rewards
