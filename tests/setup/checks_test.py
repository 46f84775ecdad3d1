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
  config.objective = defaults.objective("tpo", config)
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.name='tpo' compares .*use at least 2"
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


@pytest.mark.parametrize(
  "objective, changes, exempt",
  [
    ("grpo", {}, {}),
    ("rft", {"loop": "offline", "offline.data": "samples"}, {}),
    (
      "dpo",
      {"loop": "offline", "offline.data": "pairs"},
      {"offline.pairs": "pairs.jsonl"},
    ),
    (
      "process_reward_model",
      {"loop": "process_reward_model", "offline.data": "steps"},
      {"offline.continuations": 4},
    ),
  ],
)
def test_rewards_of_weight_0_teach_nothing(config, objective, changes, exempt):
  config.objective = defaults.objective(objective, config)
  config.update_from_flattened_dict(changes)
  decoder = tiny.decoder()
  checks.check(make(config), decoder)
  config.rewards.functions = tuple((n, f, 0.0) for n, f, _ in config.rewards.functions)
  with pytest.raises(SettingError, match="has the weight 0, .*nothing would be learned"):
    checks.check(make(config), decoder)
  if exempt:
    config.update_from_flattened_dict(exempt)
    checks.check(make(config), decoder)


def own(rollouts):
  """An advantage that needs no group."""
  return rollouts.rewards


def test_carried_groups_have_to_fit_the_batch_and_the_mesh(config):
  """A shard has to see whole groups, and as many carried ones as the others."""
  fine = [(tiny.ONE, 4), ((2, 1, 1, 2), 8), ((1, 2, 2, 2), 0)]
  for mesh, carry in fine:
    config.sampler.carry = carry
    checks.check(make(config), tiny.decoder(mesh=mesh))
  wrong = [
    (tiny.ONE, 128, "a step learns from data.prompts=.*use at most"),
    ((2, 1, 1, 1), 3, "does not divide over the 2 shards.*use a multiple of 2"),
    ((1, 2, 2, 1), 4, "spreads the samples of a group over 2 shards.*use mesh.group=1"),
  ]
  for mesh, carry, says in wrong:
    config.sampler.carry = carry
    with pytest.raises(SettingError, match=f"sampler.carry={carry}: .*{says}"):
      checks.check(make(config), tiny.decoder(mesh=mesh))


def test_games_are_judged_where_they_are_played(config):
  config.eval.reward = checks.OUTCOME
  with pytest.raises(SettingError, match="with environment.name='': no game is played"):
    checks.check_rewards(make(config))
  config.environment.name = "textarena"
  checks.check_rewards(make(config))
