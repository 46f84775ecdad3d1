"""A setting that was changed and that this run does not read is refused; see bad_settings.py for
most of them.
"""

import importlib
import operator
import pathlib

import pytest

from experiments import arithmetic, arithmetic_prm, arithmetic_rm, arithmetic_sft, gsm8k, presets
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults, registry, unread
from grpo_jax.setup.experiment import make

EXPERIMENTS = pathlib.Path(arithmetic.__file__).parent
FILES = sorted(
  str(file.relative_to(EXPERIMENTS)).removesuffix(".py").replace("/", ".")
  for file in EXPERIMENTS.rglob("*.py")
  if "get_config(" in file.read_text()
)
ARGUMENTS = {
  "arithmetic_iterative": "reward_model=x",
  "gsm8k_iterative": "reward_model=x",
  "gsm8k_rm": "policy=x",
}
ARGUMENTS |= {"gsm8k_process": "reward_model=x", "measure.reward_comparison": "prm=x,orm=x"}


def test_the_defaults_are_those_of_the_config():
  experiment = make(defaults.get_config())
  for row in unread.rows(experiment):
    assert operator.attrgetter(row.name)(experiment) == row.default, row.name


def test_what_is_given_in_place_of_a_teacher_leaves_it_as_it_is():
  """The experiment has one, and README.md tells to give a file of pairs or of steps."""
  for module, name in ((arithmetic_rm, "pairs"), (arithmetic_prm, "steps")):
    config = module.get_config()
    config.offline[name] = "x.jsonl"
    assert config.offline.teacher
    unread.check(make(config))


@pytest.mark.parametrize("name", ["weight", "discount"])
def test_rewards_of_an_environment_are_for_loops_that_learn_from_its_episodes(name):
  config = defaults.get_config()
  config.environment.name, config.environment[name] = "calculator", 0.5
  unread.check(make(config))
  config.loop, config.offline.data = "offline", "samples"
  assert f"environment.{name}" not in unread.names(make(config))
  config.offline.data = "solutions"
  config.objective = defaults.objective("sft", config)
  with pytest.raises(SettingError, match=f"environment.{name}=0.5: .* learns from no episode"):
    unread.check(make(config))


@pytest.mark.parametrize("name", ["outcome_models", "process_models"])
@pytest.mark.parametrize("module", [arithmetic_sft, arithmetic_rm, arithmetic_prm])
def test_reward_models_are_for_runs_that_score_samples(module, name):
  config = module.get_config()
  config.rewards[name] = (("judge", "runs/1", 1.0),)
  if module is not arithmetic_sft:  # samples are drawn and scored
    unread.check(make(config))
    config.offline["pairs" if module is arithmetic_rm else "steps"] = "x.jsonl"
  with pytest.raises(
    SettingError, match=f"^rewards.{name}=.*scores no samples in training; use \\(\\)"
  ):
    unread.check(make(config))


@pytest.mark.parametrize(
  "name, read", [("grpo", True), ("cispo", True), ("sapo", False), ("kl_cov", False)]
)
def test_only_a_bound_can_be_reached(name, read):
  config = defaults.get_config()
  config.objective, config.learner.stop_reached = defaults.objective(name, config), 0.2
  if read:
    unread.check(make(config))
    return
  with pytest.raises(SettingError, match="^learner.stop_reached=0.2: .* has no bound that tokens"):
    unread.check(make(config))


@pytest.mark.parametrize("name", FILES)
def test_the_experiments_read_what_they_set(name):
  module = importlib.import_module(f"experiments.{name}")
  if not hasattr(module, "get_config"):
    return
  config = module.get_config(*filter(None, [ARGUMENTS.get(name)]))
  if "loop" in config:
    unread.check(make(config))


@pytest.mark.parametrize("experiment", [arithmetic, gsm8k])
@pytest.mark.parametrize("objective", sorted(presets.PRESETS))
def test_every_objective_reads_what_its_row_sets(objective, experiment):
  module, _ = presets.PRESETS[objective]
  teacher = ",teacher=x" if registry.objective(module).teacher else ""
  config = experiment.get_config(f"objective={objective}{teacher}")
  unread.check(make(config))


def test_what_a_run_reads_may_be_set():
  config = arithmetic.get_config("objective=ppo")
  config.update_from_flattened_dict(
    {"ref_from": "x", "learner.critic_lr": 1.0, "data.chat": True, "data.system": "a"}
  )
  unread.check(make(config))
  config.data.chat = False
  with pytest.raises(
    SettingError, match="data.system='a': with data.chat=False there is no system message; use ''"
  ):
    unread.check(make(config))
