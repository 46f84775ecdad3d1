"""Holds an experiment: a config that was checked, with what its names stand for looked up, once.

A person writes a config, a ConfigDict. `make` turns it into an `Experiment`, which nothing changes
any more: typed settings, and where the config names an objective, a reward or a data set, the
objects themselves. Below this module nothing sees a config or looks a name up again.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from grpo_jax.aliases import Json
from grpo_jax.config import sections, settings
from grpo_jax.environments.base import Functions
from grpo_jax.errors import GrpoError
from grpo_jax.objectives.base import ConfiguredObjective
from grpo_jax.rewards import attempts
from grpo_jax.setup import loop_names, registry, scorers, shots
from grpo_jax.setup.registry import DataSet
from grpo_jax.setup.scorers import NamedModel, Reward, RewardFunction
from grpo_jax.types import Example

LIVE = ("online", "iterative")  # kinds of loops that learn from samples of the current policy
ENVIRONMENT = attempts.ENVIRONMENT
LEARNING = "reward_model"  # the name of the reward model that learns under loop="iterative"
# Completions of a prompt by kind of offline data; samples have as many as the sampler makes.
COMPLETIONS = {"solutions": 1, "pairs": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(settings.Settings):
  """Holds the settings of an experiment, and what its names stand for."""

  kind: str  # of loop_names.KINDS: the loop whose settings `loop` reads, itself or what it says
  config: ConfigDict  # a copy of what the person wrote, with settings of their own; see `changed`
  objective: ConfiguredObjective
  reward_functions: tuple[RewardFunction, ...]  # rewards.functions; () if nothing is scored
  reward_models: tuple[NamedModel, ...]  # rewards.outcome_models, then rewards.process_models
  environment_functions: Functions | None  # of environment.name
  eval_reward: Reward
  requirement: Callable | None  # offline.require
  train_data: tuple[DataSet, ...]
  test_data: DataSet

  @property
  def source(self) -> str:
    """Where the completions come from: "live", or the kind of offline data."""
    return "live" if self.kind in LIVE else self.offline.data

  @property
  def completions(self) -> int:
    """Number of completions of a prompt (G)."""
    return COMPLETIONS.get(self.source, self.sampler.group)

  @property
  def components(self) -> list[tuple[str, float]]:
    """Name and weight of each reward component (N), in their order.

    They are the functions, the environment, the reward models, and under loop="iterative" the
    reward model that learns.
    """
    functions = [(entry[0], entry[2]) for entry in self.rewards.functions]
    if self.environment_functions:
      functions.append((ENVIRONMENT, self.environment.weight))
    models = [(model.name, model.weight) for model in self.reward_models]
    learning = [(LEARNING, self.iterative.weight)] if self.kind == "iterative" else []
    return functions + models + learning

  @property
  def reward_names(self) -> list[str]:
    """Names of the functions, the environment and the reward models that the config names."""
    functions = [entry[0] for entry in self.rewards.functions]
    played = [ENVIRONMENT] if self.environment_functions else []
    return functions + played + [model.name for model in self.reward_models]

  @property
  def rule(self) -> str:
    """Name of the one of `rewards.functions` that tells what is right, or "".

    That is `iterative.labels` if a reward model learns from it, otherwise the one that is
    `eval.reward`.
    """
    return self.iterative.labels if self.kind == "iterative" else self.checked

  @property
  def checked(self) -> str:
    """Name of the one of `rewards.functions` that is `eval.reward`, or ""."""
    asked = [self.eval.reward, dict(self.eval.arguments)]
    rows = ((name, [path, dict(*more)]) for name, path, _, *more in self.rewards.functions)
    return next((name for name, which in rows if which == asked), "")

  def config_json(self) -> Json:
    """Returns the config as JSON."""
    return json.loads(self.config.to_json_best_effort())

  def own_defaults(self) -> Json:
    """Returns the defaults of settings that the objective and the data sets have of their own."""
    data = {name: registry.data(name).settings().to_dict() for name in sections.DATA_SETS}
    return {"data": data, "objective": registry.objective_defaults(self.objective.name).to_dict()}

  def open_train(self) -> list[Sequence[Example]]:
    """Returns the data sets to train on, without the worked examples of `data.shots`."""
    first, *others = [data_set.open() for data_set in self.train_data]
    if self.data.shots:
      first = shots.Without(first, shots.indices(len(first), self.data.shots))
    return [first, *others]

  def open_test(self) -> Sequence[Example]:
    """Returns the data set to evaluate on, unless it is the one that is trained on."""
    registry.check_test(self.test_data, self.train_data, self.data)
    try:
      return self.test_data.open()
    except GrpoError as error:  # of a data set that does not know for what it is read
      if self.data.test_path and "data.path" in str(error):
        raise type(error)(str(error).replace("data.path", "data.test_path")) from error
      raise


def make(config: ConfigDict) -> Experiment:
  """Returns the experiment of a config whose values are within their ranges (sections.check)."""
  config = config.copy_and_resolve_references()  # whatever the caller changes later
  sections.expand(config)
  fields = sections.typed(config)
  kind = loop_names.kind(fields["loop"])
  objective = registry.configured(config.objective)
  scored = kind in LIVE or fields["offline"].data != "solutions"
  models = tuple(scorers.reward_models(fields["rewards"]))
  functions: tuple[RewardFunction, ...] = ()
  played = scorers.environment(fields["environment"])
  if scored:
    others = [model.name for model in models] + ([ENVIRONMENT] if played else [])
    functions = scorers.reward_functions(fields["rewards"], others)
  requirement = scorers.requirement(fields["offline"])
  eval_reward = scorers.eval_reward(fields["eval"])
  return Experiment(
    **fields,
    kind=kind,
    config=config.lock(),
    objective=objective,
    reward_functions=functions,
    reward_models=models,
    environment_functions=played,
    eval_reward=eval_reward,
    requirement=requirement,
    train_data=registry.train_data(config.data),
    test_data=registry.test_data(config.data),
  )


def changed(experiment: Experiment, changes: Mapping[str, object]) -> Experiment:
  """Returns the experiment with other values of settings, by their dotted names."""
  config = experiment.config.copy_and_resolve_references()
  with config.ignore_type():  # a section made by hand may hold 0 where others hold 0.0
    for name, value in changes.items():
      section, _, last = name.rpartition(".")
      (config[section] if section else config)[last] = value
  return make(config)
