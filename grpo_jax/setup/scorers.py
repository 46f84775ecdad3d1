"""Resolves what scores completions: reward functions and reward models that a config names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_jax.aliases import Json
from grpo_jax.config import kinds, settings
from grpo_jax.environments import base
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.objectives.shared_settings import LARGEST_WEIGHT
from grpo_jax.rewards import attempts
from grpo_jax.setup import modules, registry

FORM = "(name, function, weight) or (..., keyword arguments)"  # of an entry of rewards.functions

SIGNATURES = (
  "(example, completion), which returns a number, or (example, completions), which returns one for "
  "each"
)
# Names that a first parameter cannot have, since it is the example.
NOT_FIRST = ("prompts", "completion", "completions")
# Functions of a reward's file besides it, and how many arguments they have before its keywords.
ARGUMENTS = {"answer_of": 1, "check_arguments": 0, "score_ahead": 1, "feedback": 2}
TAKEN = ("mean", "std")  # since reward/mean and reward/std are metrics of all rewards together

# The settings that name reward models, and whether these score each step.
MODELS = {"outcome_models": False, "process_models": True}


class Reward(NamedTuple):
  """A function that scores completions, with the helpers of its file (rewards/__init__.py)."""

  score: Callable  # (example, completion) -> value, or (example, completions) -> values
  answer_of: Callable | None  # completion -> what it votes for
  # called with [(example, completion), ...] of a batch before they are scored
  score_ahead: Callable | None
  feedback: Callable | None  # (example, completion) -> what a teacher is told of it, or None


class RewardFunction(NamedTuple):
  """Holds one of `rewards.functions`."""

  name: str
  reward: Reward
  weight: float


class NamedModel(NamedTuple):
  """Names a reward model of the config."""

  name: str
  folder: str  # or the workdir of a run
  weight: float
  steps: bool  # whether it scores each step


def reward_functions(cfg: settings.Rewards, others: Sequence[str]) -> tuple[RewardFunction, ...]:
  """Returns what `cfg.functions` names.

  Args:
    cfg: the rewards section. A fourth entry of a function holds keyword arguments, as in
      ("overlong", "length.overlong", 1.0, {"max_length": 96, "buffer": 16}).
    others: the names of all other rewards: those of reward models and of the environment.
  """
  functions = []
  for entry in cfg.functions:
    name, path, weight = registry.triple(entry, "rewards.functions", FORM, 4)
    check_name(name, "rewards.functions")
    if not abs(weight) <= LARGEST_WEIGHT:
      most = f"{LARGEST_WEIGHT:g}"
      raise SettingError(f"rewards.functions has {entry!r}: use a weight from -{most} to {most}")
    shown = f"rewards.functions has {entry!r}"
    reward = _reward(path, dict(*entry[3:]), "rewards.functions", shown)
    functions.append(RewardFunction(name, reward, float(weight)))
  names = [function.name for function in functions] + [*others]
  if not names or len(set(names)) < len(names):
    raise SettingError(
      f"rewards.functions has the names {names}, with those of outcome_models, process_models and "
      "the environment: give at least one, each its own name"
    )
  return tuple(functions)


def reward_models(cfg: settings.Rewards) -> list[NamedModel]:
  """Returns the reward models of the rewards section."""
  models = []
  for setting, steps in MODELS.items():
    for entry in getattr(cfg, setting):
      name, folder, weight = registry.triple(entry, f"rewards.{setting}", "(name, folder, weight)")
      check_name(name, f"rewards.{setting}")
      storage.check(f"rewards.{setting}", folder)
      if not folder:
        raise SettingError(
          f"rewards.{setting} has {entry!r}: give the folder of a reward model, or of its run"
        )
      if not abs(weight) <= LARGEST_WEIGHT:
        raise SettingError(
          f"rewards.{setting} has {entry!r}: use a weight of at most {LARGEST_WEIGHT:g} either way"
        )
      models.append(NamedModel(name, folder, weight, steps))
  return models


def check_name(name: str, setting: str) -> None:
  """Refuses a reward whose name cannot be a part of the metrics `reward/NAME`."""
  if not kinds.NAME.fits(name):
    raise SettingError(f"{setting} has the name {kinds.shown(name)}: use {kinds.NAME.expects}")
  if name in TAKEN:
    raise SettingError(
      f"{setting} has the name {name!r}: reward/{name} is a metric of all rewards together; use "
      "another name"
    )


def keywords(rows: tuple, setting: str) -> Json:
  """Returns the keyword arguments of a setting that holds (("name", value), ...)."""
  try:
    arguments = dict(rows)
  except (TypeError, ValueError) as error:
    raise SettingError(
      f"{setting}={kinds.shown(rows)}: use (('name', value), ...): {error}"
    ) from error
  if len(arguments) < len(rows):
    raise SettingError(f"{setting}={kinds.shown(rows)}: use each name once")
  return arguments


def eval_reward(cfg: settings.Eval) -> Reward:
  """Returns the reward that `cfg.reward` names, with the keyword arguments `cfg.arguments`.

  Args:
    cfg: the eval section.
  """
  arguments = keywords(cfg.arguments, "eval.arguments")
  shown = f"eval.reward={cfg.reward!r} with eval.arguments={kinds.shown(cfg.arguments)}"
  reward = _reward(cfg.reward, arguments, "eval.reward", shown)
  if attempts.looks_at_group(reward.score):
    raise SettingError(
      f"{shown}: looks at a group of {attempts.GROUP_PARAMETER}, and an evaluation asks of one at "
      "a time whether it is right; use a reward of (example, completion)"
    )
  return reward


def check_kind(function: Callable, shown: str) -> None:
  """Refuses a callable that is not a reward, such as a class or a reward written for TRL.

  Args:
    function: that a setting names.
    shown: the setting, with its value.
  """
  wrong = {
    "a class": inspect.isclass(function),
    "an async function": inspect.iscoroutinefunction(function)
    or inspect.isasyncgenfunction(function),
    "a generator": inspect.isgeneratorfunction(function),
  }
  if kind := next((kind for kind, applies in wrong.items() if applies), ""):
    raise SettingError(f"{shown}: is {kind}; use a function {SIGNATURES}")
  try:
    first = next(iter(inspect.signature(function).parameters), "")
  except (TypeError, ValueError):  # written in C, without a signature
    return
  if first in NOT_FIRST:
    raise SettingError(
      f"{shown}: its first parameter is called {first!r}, and it would be given an example; use a "
      f"function {SIGNATURES}"
    )


def environment(cfg: settings.Environment) -> base.Functions | None:
  """Returns the functions of the environment that `cfg.name` names; None: it names none.

  Args:
    cfg: the environment section.
  """
  if not cfg.name:
    return None
  shown = f"environment.name={cfg.name!r}"
  arguments = keywords(cfg.arguments, "environment.arguments")
  code = modules.module("grpo_jax.environments", cfg.name, "environment.name")
  try:
    return base.functions(vars(code), arguments)
  except LookupError as error:
    raise SettingError(f"{shown}: {error}; see docs/environments.md") from error
  except (TypeError, ValueError) as error:
    raise SettingError(
      f"{shown} with environment.arguments={kinds.shown(cfg.arguments)}: step(state, completion), "
      f"and reset(example, key) if it has one, should take these as keyword arguments: {error}"
    ) from error


def requirement(cfg: settings.Offline) -> Callable | None:
  """Returns the function that `cfg.require` names, if any.

  Args:
    cfg: the offline section.
  """
  if not cfg.require:
    return None
  return _reward(cfg.require, {}, "offline.require", f"offline.require={cfg.require!r}").score


def _reward(path: str, keywords: Json, setting: str, shown: str) -> Reward:
  """Returns a reward by its path, bound to keyword arguments that its file has checked."""
  module, score = modules.with_module(path, "grpo_jax.rewards", setting)
  check_kind(score, shown)
  helpers = {name: vars(module).get(name) for name in ARGUMENTS}
  try:
    inspect.signature(score).bind("example", "completion", **keywords)
  except (TypeError, ValueError) as error:
    raise SettingError(
      f"{shown}: {path} cannot be called so, with an example, its completion or completions, and "
      f"its keyword arguments: {error}"
    ) from error
  for name, function in helpers.items():
    try:
      if function is not None:
        inspect.signature(function).bind(*[()] * ARGUMENTS[name], **keywords)
    except (TypeError, ValueError) as error:
      raise SettingError(
        f"{shown}: {name} in the file of {path} has to take the same keyword arguments: {error}"
      ) from error
  check = helpers.pop("check_arguments")
  if check:
    check(**keywords)
  if not keywords:
    return Reward(score, **helpers)
  bound = {name: f and functools.partial(f, **keywords) for name, f in helpers.items()}
  return Reward(functools.partial(score, **keywords), **bound)
