"""What scores completions, as a config names it: functions, and reward models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.rewards import combine
from grpo_jax.setup import registry

FORM = "(name, function, weight) or (..., keyword arguments)"  # of an entry of rewards.functions

SIGNATURES = (
  "(example, completion), which returns a number, or (example, completions), which returns one for "
  "each"
)
NOT_FIRST = (
  "prompts",
  "completion",
  "completions",
)  # names of a first parameter, which is the example
TAKEN = ("mean", "std")  # the metrics reward/mean and reward/std are of all rewards together

# The settings that name reward models, and whether these are asked after each step.
MODELS = {"outcome_models": False, "process_models": True}
LEARNING = "reward_model"  # the name of the reward model that learns under loop="iterative"


class Reward(NamedTuple):
  """A function that scores completions, and what its file has beside it;
  grpo_jax/rewards/__init__.py says what.
  """

  score: Callable  # (example, completion) -> value, or (example, completions) -> values
  answer_of: Callable | None  # completion -> what it votes for
  # called with [(example, completion), ...] of a batch before they are scored
  score_ahead: Callable | None


def rewards(cfg: Any) -> list[tuple[str, Callable, float]]:
  """Returns (name, function, weight) of each of `cfg.functions`.

  Args:
    cfg: the rewards section. A fourth entry of a function holds keyword arguments, as in
      ("overlong", "length.overlong", 1.0, {"max_length": 96, "buffer": 16}).
  """
  return [(name, found.score, weight) for name, found, weight in _rewards(cfg)]


def scored_ahead(cfg: Any) -> list[Callable]:
  """Returns what is to be called with a batch before `cfg.functions` score it; see `Reward`."""
  return [found.score_ahead for _, found, _ in _rewards(cfg) if found.score_ahead]


def _rewards(cfg: Any) -> list[tuple[str, Reward, float]]:
  """Returns (name, reward, weight) of each of `cfg.functions`."""
  entries = []
  for entry in cfg.functions:
    name, path, weight = registry.triple(entry, "rewards.functions", FORM, 4)
    check_name(name, "rewards.functions")
    if not abs(weight) <= registry.LARGEST_WEIGHT:
      most = f"{registry.LARGEST_WEIGHT:g}"
      raise SettingError(f"rewards.functions has {entry!r}: use a weight from -{most} to {most}")
    shown = f"rewards.functions has {entry!r}"
    entries.append(
      (name, _reward(path, dict(*entry[3:]), "rewards.functions", shown), float(weight))
    )
  names = reward_names(cfg)
  if not names or len(set(names)) < len(names):
    raise SettingError(
      f"rewards.functions has the names {names}, with those of outcome_models and process_models: "
      "give at least one, each its own name"
    )
  return entries


def reward_models(cfg: Any) -> list[tuple[str, str, float, bool]]:
  """Returns (name, folder, weight, whether it is asked after each step) of each reward model that
  the config names.

  Args:
    cfg: the rewards section.
  """
  found = []
  for setting, steps in MODELS.items():
    for entry in cfg[setting]:
      name, folder, weight = registry.triple(entry, f"rewards.{setting}", "(name, folder, weight)")
      check_name(name, f"rewards.{setting}")
      storage.check(f"rewards.{setting}", folder)
      if not folder:
        raise SettingError(
          f"rewards.{setting} has {entry!r}: give the folder of a reward model, or of its run"
        )
      if not abs(weight) <= registry.LARGEST_WEIGHT:
        raise SettingError(
          f"rewards.{setting} has {entry!r}: use a weight of at most {registry.LARGEST_WEIGHT:g} "
          "either way"
        )
      found.append((name, folder, weight, steps))
  return found


def check_name(name: str, setting: str) -> None:
  """Refuses the name of a reward that cannot be one of the metrics `reward/NAME` and
  `agreement/NAME`.
  """
  if not kinds.NAME.fits(name):
    raise SettingError(f"{setting} has the name {kinds.shown(name)}: use {kinds.NAME.expects}")
  if name in TAKEN:
    raise SettingError(
      f"{setting} has the name {name!r}: reward/{name} is a metric of all rewards together; use "
      "another name"
    )


def reward_names(cfg: Any) -> list[str]:
  """Returns the names of all rewards, in the order of their components: functions, then reward
  models.
  """
  return [entry[0] for entry in cfg.functions] + [name for name, *_ in reward_models(cfg)]


def components(config: Any) -> list[tuple[str, float]]:
  """Returns (name, weight) of each reward component of a run, in their order.

  They are the functions, the reward models, and under loop="iterative" the reward model that
  learns.
  """
  functions = [(entry[0], entry[2]) for entry in config.rewards.functions]
  models = [(name, weight) for name, _, weight, _ in reward_models(config.rewards)]
  return functions + models + [(LEARNING, config.iterative.weight)] * (config.loop == "iterative")


def rule(config: Any) -> str:
  """Returns the name of the function among `rewards.functions` that says what is right, or "" where
  none does.

  It is the one that labels what a reward model learns from (`iterative.labels`), or else the one
  that is `eval.reward`.
  """
  return config.iterative.labels if config.loop == "iterative" else checked(config)


def checked(config: Any) -> str:
  """Returns the name of the function among `rewards.functions` that is `eval.reward` with its
  arguments, or "".
  """
  arguments = _eval_arguments(config.eval)
  rows = ((name, path, dict(*more)) for name, path, _, *more in config.rewards.functions)
  return next((name for name, *which in rows if which == [config.eval.reward, arguments]), "")


def _eval_arguments(cfg: Any) -> dict[str, Any]:
  """The keyword arguments of `eval.arguments`."""
  try:
    found = dict(cfg.arguments)
  except (TypeError, ValueError) as error:
    raise SettingError(
      f"eval.arguments={kinds.shown(cfg.arguments)}: use (('name', value), ...): {error}"
    ) from error
  if len(found) < len(cfg.arguments):
    raise SettingError(f"eval.arguments={kinds.shown(cfg.arguments)}: use each name once")
  return found


def eval_reward(cfg: Any) -> Reward:
  """Returns the reward that `cfg.reward` names, with the keyword arguments `cfg.arguments`.

  Args:
    cfg: the eval section.
  """
  given = _eval_arguments(cfg)
  shown = f"eval.reward={cfg.reward!r} with eval.arguments={kinds.shown(cfg.arguments)}"
  found = _reward(cfg.reward, given, "eval.reward", shown)
  if combine.looks_at_group(found.score):
    raise SettingError(
      f"{shown}: looks at a group of {combine.GROUP_PARAMETER}, and an evaluation asks of one at a "
      "time whether it is right; use a reward of (example, completion)"
    )
  return found


def check_kind(function: Callable, shown: str) -> None:
  """Refuses what can be called and is no reward, such as a class, or a function with the parameters
  of TRL's rewards.

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
  if kind := next((kind for kind, is_so in wrong.items() if is_so), ""):
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


def requirement(cfg: Any) -> Callable | None:
  """Returns the function that `cfg.require` names, or None where it names none.

  Args:
    cfg: the offline section.
  """
  if not cfg.require:
    return None
  return _reward(cfg.require, {}, "offline.require", f"offline.require={cfg.require!r}").score


def _reward(path: str, given: dict[str, Any], setting: str, shown: str) -> Reward:
  """Returns a reward by its path, with keyword arguments that its file has checked; `shown` is how
  it is set.
  """
  found, score = registry.with_module(path, "grpo_jax.rewards", setting)
  check_kind(score, shown)
  beside = {name: vars(found).get(name) for name in ("answer_of", "check_arguments", "score_ahead")}
  try:
    inspect.signature(score).bind("example", "completion", **given)
    for name, function in beside.items():
      if function is not None:
        inspect.signature(function).bind(*[()] * (name != "check_arguments"), **given)
  except (TypeError, ValueError) as error:
    raise SettingError(f"{shown}: {path} cannot be called so: {error}") from error
  check = beside.pop("check_arguments")
  if check:
    check(**given)
  bound = {name: functools.partial(f, **given) if f and given else f for name, f in beside.items()}
  return Reward(functools.partial(score, **given) if given else score, **bound)
