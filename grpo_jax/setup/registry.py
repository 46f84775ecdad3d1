"""Looks up the data sets and objectives that a config names."""

import dataclasses
import functools
import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax.config import forms, kinds, settings
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.objectives import advantages, base, shared_settings
from grpo_jax.sandbox import deadline
from grpo_jax.setup import calls, modules
from grpo_jax.types import Example


def objective(name: str) -> base.Objective:
  """Returns the objective that `objective.name` names: the OBJECTIVE of a module or file.

  Args:
    name: a module of grpo_jax.objectives, an import path with a dot, or a file "path/file.py".
  """
  shown = f"objective.name={name!r}"
  objective = base.find_objective(modules.module("grpo_jax.objectives", name, "objective.name"))
  if objective is None:
    raise SettingError(
      f"{shown}: has no objective; end the file with OBJECTIVE = Objective(loss), where Objective "
      "is from grpo_jax.objectives.base; grpo_jax.objectives has "
      f"{modules.offered('grpo_jax.objectives')}"
    )
  if mistake := _mistake(objective):
    raise SettingError(f"{shown}: {mistake}")
  return objective


def configured(section: ConfigDict) -> base.ConfiguredObjective:
  """Returns the objective that the `objective` section chooses, with its settings, once checked."""
  section = ConfigDict({name: kinds.tuples(section[name]) for name in section})
  chosen = objective(section.name)
  defaults = objective_defaults(section.name)
  _check_names(chosen, section)
  kinds.check_like(
    {each: section[each] for each in section if each != "name"}, defaults, "objective."
  )
  _check(chosen, section)
  advantage = _advantage(section, defaults) if "advantage" in section else None
  return base.ConfiguredObjective(chosen, FrozenConfigDict(section.to_dict()), advantage)


def _check(chosen: base.Objective, section: ConfigDict) -> None:
  """Calls the objective's `check`; what it refuses is told as `objective.NAME`."""
  shown = f"objective.name={section.name!r}"
  try:
    calls.call(
      shown, "check", "nothing, or raise SettingError for what it refuses", chosen.check, section
    )
  except SettingError as error:
    if str(error).partition("=")[0] in section:
      raise SettingError(f"objective.{error}") from error
    raise


def objective_defaults(name: str) -> ConfigDict:
  """Returns the settings of the objective that `objective.name` names, with their defaults."""
  settings = objective(name).settings
  shown, expects = f"objective.name={name!r}", "a ConfigDict with a default for each setting"
  defaults = calls.call(shown, "settings", expects, settings)
  if not isinstance(defaults, ConfigDict):
    came = f"a {type(defaults).__name__}"
    raise SettingError(
      f"{shown}: settings ({calls.place(settings)}) returned {came}; it should return {expects}"
    )
  return defaults


def _mistake(objective: base.Objective) -> str:
  """Returns which field of an objective is wrong, and what it should be; "" if none is."""
  data = objective.data
  if not isinstance(data, tuple | list) or not data or not all(kind in base.DATA for kind in data):
    return (
      f"data is {data!r:.80}; use a tuple of some of {', '.join(base.DATA)}, with a comma after a "
      "single one"
    )
  if not isinstance(objective.teacher, str):
    return (
      f"teacher is {objective.teacher!r:.80}; use the name of a setting, such as 'ref_from', or ''"
    )
  if not isinstance(objective.trains_reward_model, bool):
    return f"trains_reward_model is {objective.trains_reward_model!r:.80}; use True or False"
  for field in dataclasses.fields(objective):
    value = getattr(objective, field.name)
    if field.name in ("data", "teacher", "trains_reward_model"):
      continue
    if not callable(value) and (field.name != "importance_ratio" or value is not None):
      return (
        f"{field.name} is {value!r:.80}; it should be a function, see grpo_jax/objectives/base.py"
      )
  return ""


def _check_names(objective: base.Objective, section: ConfigDict) -> None:
  """Refuses an `objective` section of the config that is another objective's."""
  read, has = {"name", *objective.settings()}, set(section)
  if read == has:
    return
  wrong = []
  if read - has:
    wrong.append(f"lacks {', '.join(sorted(read - has))}")
  if has - read:
    wrong.append(f"has {', '.join(sorted(has - read))}, which {section.name} does not read")
  raise SettingError(
    f"objective.name={section.name!r}: use --config=FILE:objective={section.name}, or in a config "
    f"file of your own c.objective = defaults.objective({section.name!r}, c); the name alone does "
    f"not change the settings, and the section {' and '.join(wrong)}"
  )


def _advantage(section: ConfigDict, defaults: ConfigDict) -> Callable:
  """Returns the function that `section.advantage` names, with its parameters filled."""
  path = section.advantage
  shown = f"objective.advantage = {path!r}"
  shipped = {
    name: f
    for name, f in vars(advantages).items()
    if name[0] != "_" and inspect.isfunction(f) and _takes_rollouts(f)
  }
  if ":" not in path and path not in shipped:
    raise SettingError(
      f'{shown}: use {", ".join(shipped)}, or a function of yours: "package.module:function" or '
      '"file.py:function"'
    )
  if ":" in path:
    advantage = modules.function(path, "grpo_jax.objectives", "objective.advantage")
  else:
    advantage = shipped[path]
  parameters = [*inspect.signature(advantage).parameters.values()]
  named = {p.name: p for p in parameters[1:] if p.kind is p.KEYWORD_ONLY}
  if (
    not parameters
    or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY
    or (len(named) < len(parameters) - 1)
  ):
    raise SettingError(
      f"{shown}: takes {inspect.signature(advantage)}; it should take rollouts, and settings by "
      "keyword, as (rollouts, *, eps)"
    )
  for name in shared_settings.advantage():
    if (
      name not in ("advantage", "advantage_arguments")
      and name in section
      and name not in named
      and section[name] != defaults[name]
    ):
      raise SettingError(
        f"{name}={section[name]!r} with {shown}, which does not read it: use {defaults[name]!r}"
      )
  settings = {name: section[name] for name in named if name in section}
  settings |= _own_arguments(section, shown, [name for name in named if name not in section])
  for name, parameter in named.items():
    if name not in settings and parameter.default is parameter.empty:
      raise SettingError(
        f"{shown}: {name} is no setting of objective={section.name!r}; give it a default, or a "
        f"value in objective.advantage_arguments, as in (({name!r}, 1.0),)"
      )
  return _bind(advantage, tuple(settings.items()))


def _own_arguments(section: ConfigDict, shown: str, own: Sequence[str]) -> dict[str, Any]:
  """Returns `advantage_arguments` by name; `own` are the keywords that they may be."""
  pairs = section.get("advantage_arguments", ())
  setting = f"objective.advantage_arguments={pairs!r:.80}"
  if not forms.is_pairs(pairs) or not all(isinstance(name, str) for name, _ in pairs):
    raise SettingError(f"{setting}: use (('name', value), ...)")
  for name, value in pairs:
    if name in section:
      raise SettingError(f"{setting}: {name} is a setting; use --config.objective.{name}={value!r}")
    if name not in own:
      raise SettingError(
        f"{setting}: {shown} takes no {name!r}; it takes {', '.join(own) or 'none of its own'}"
      )
    if not isinstance(value, bool | int | float | str | tuple):
      raise SettingError(f"{setting}: {name} is {value!r:.40}; use a number, a text or a tuple")
  return {name: value for name, value in pairs}


@functools.cache
def _bind(advantage: Callable, settings: tuple[tuple[str, Any], ...]) -> Callable:
  """Returns the same function object for the same settings, so that jit compiles it once."""
  return functools.partial(advantage, **dict(settings))


def _takes_rollouts(function: Callable) -> bool:
  """Returns whether the first parameter of a function is `rollouts`."""
  return next(iter(inspect.signature(function).parameters), "") == "rollouts"


class DataSet(NamedTuple):
  """Names a split of a data set of the config, which is not read yet."""

  name: str
  path: str
  split: str
  weight: float  # beside others that are trained on
  setting: str  # that names it
  module: ModuleType
  cfg: ConfigDict  # the data set's own settings

  def open(self) -> Sequence[Example]:
    """Returns the examples."""
    with deadline.in_folder(f"{self.setting}={self.name!r}"):
      return self.module.source(self.split, self.path, self.cfg)


def train_data(cfg: ConfigDict) -> tuple[DataSet, ...]:
  """Returns the data sets to train on; `cfg` is the `data` section."""
  setting = "data.mixture" if cfg.mixture else "data.name"
  entries = train_entries(cfg)
  return tuple(_data_set(name, path, cfg.train, w, setting, cfg) for name, path, w in entries)


def test_data(cfg: ConfigDict) -> DataSet:
  """Returns the data set to evaluate on; `cfg` is the `data` section."""
  name, path = cfg.name, cfg.path
  if cfg.test_name or cfg.test_path:
    name, path = cfg.test_name or cfg.name, cfg.test_path
  setting = "data.test_name" if cfg.test_name else "data.name"
  return _data_set(name, path, cfg.test, 1.0, setting, cfg)


def check_test(test: DataSet, train: Sequence[DataSet], cfg: settings.Data) -> None:
  """Refuses to evaluate on what is trained on, and beside a mixture on what nobody named."""
  names = [each.name for each in train]
  if cfg.mixture and not (cfg.test_name or cfg.test_path) and test.name not in names:
    raise SettingError(
      f"data.test_name='': with data.mixture, evaluations would be on data.name={test.name!r}, "
      f"which the mixture has not; set data.test_name to one of {', '.join(dict.fromkeys(names))}, "
      "with data.test_path if it needs a path"
    )
  place = _file(test)
  if test.path and place.is_file() and place in [_file(each) for each in train if each.path]:
    raise SettingError(
      f"data.test_path: {test.path} is the file that is trained on; give another, or a folder with "
      f"{cfg.train}.jsonl and {cfg.test}.jsonl as data.path"
    )
  if any(test[:3] == each[:3] for each in train):
    raise SettingError(
      f"data.test={cfg.test!r}: is the split that is trained on (data.train), of the same data; "
      "give another of them"
    )


def _file(data_set: DataSet) -> storage.Path:
  """Returns the path of a data set, of a folder that of its split; links are followed."""
  path = storage.place(data_set.path)
  path = path / f"{data_set.split}.jsonl" if path.is_dir() else path
  return path if storage.in_bucket(data_set.path) else storage.place(os.path.realpath(path))


def _data_set(
  name: str, path: str, split: str, weight: float, setting: str, cfg: ConfigDict
) -> DataSet:
  """Returns a data set, with the settings of its section, or else with its defaults."""
  module, section = data(name, setting), data_section(name)
  own = module.settings()
  if section in cfg:
    kinds.check_like(cfg[section], own, f"data.{section}.")
    own = cfg[section]
  return DataSet(name, path, split, weight, setting, module, own)


def train_entries(cfg: ConfigDict | settings.Data) -> list[tuple[str, str, float]]:
  """Returns (name, path, weight) of each data set to train on; `cfg` is the `data` section."""
  entries = [triple(entry, "data.mixture", "(name, path, weight)") for entry in cfg.mixture]
  for _, path, _ in entries:
    storage.check("data.mixture", path)
  weights = [weight for *_, weight in entries]
  if entries and not (
    min(weights) > 0 and max(weights) / min(weights) <= shared_settings.LARGEST_WEIGHT
  ):
    raise SettingError(
      f"data.mixture has weights {weights}: use positive numbers, the largest at most 1,000,000 "
      "times the least"
    )
  return entries or [(cfg.name, cfg.path, 1.0)]


def triple(entry: Any, setting: str, form: str, most: int = 3) -> tuple[str, str, float]:
  """Returns two texts and a number, the first three of an entry of at most `most`."""
  fits = isinstance(entry, tuple | list) and 3 <= len(entry) <= most
  fits = (
    fits and kinds.is_text(entry[0]) and kinds.is_path(entry[1]) and kinds.Number().fits(entry[2])
  )
  if not fits or not all(isinstance(more, Mapping) for more in entry[3:]):
    raise SettingError(
      f"{setting} has {kinds.shown(entry)}: give {form}, and a comma after a single one"
    )
  return entry[0], entry[1], float(entry[2])


def data(name: str, setting: str = "data.name") -> ModuleType:
  """Returns the data set that a setting names, a module as grpo_jax/data/__init__.py describes it.

  Args:
    name: a module of grpo_jax.data, an import path with a dot, or a file "path/file.py".
    setting: whose value the name is.
  """
  data_set = modules.module("grpo_jax.data", name, setting)
  for needed in ("settings()", "source(split, path, cfg)"):
    if needed.partition("(")[0] not in vars(data_set):
      raise SettingError(
        f"{setting}={name!r}: has no function {needed}; grpo_jax.data has "
        f"{modules.offered('grpo_jax.data')}"
      )
  return data_set


def data_section(name: str) -> str:
  """Returns the name of the section inside `data` with a data set's own settings."""
  return pathlib.Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
