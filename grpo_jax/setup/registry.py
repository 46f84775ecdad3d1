"""From names in a config to modules and functions: data sets, rewards, objectives and their
advantages.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax.config import kinds
from grpo_jax.distributed import inputs
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.objectives import advantages, base, shared_settings
from grpo_jax.sandbox import deadline
from grpo_jax.setup import calls
from grpo_jax.types import Example

LARGEST_WEIGHT = 1e6  # of a reward, and between the data sets of a mixture

# The code of a user's that settings name, by the name there, as `inputs.describe_file` has it when it is
# loaded.
loaded: dict[str, str] = {}


def module(package: str, name: str, setting: str) -> ModuleType:
  """Returns the module that a config names.

  Args:
    package: where a plain name is looked for, such as "grpo_jax.data".
    name: a module of `package`, an import path with a dot, or a file "path/file.py".
    setting: what the name was the value of.

  Raises:
    SettingError: there is none, or it fails to import; names `setting` and what there is.
  """
  if name.endswith(".py"):
    return _file(name, f"{setting}={name!r}")
  return _import(name if "." in name else f"{package}.{name}", package, f"{setting}={name!r}")


def function(path: str, package: str, setting: str) -> Callable:
  """Returns a function by "module.function" of `package`, "package.module:function" or
  "path/file.py:function".

  Raises:
    SettingError: no such module, file or function, or one of Python itself; names `setting`.
  """
  return with_module(path, package, setting)[1]


def with_module(path: str, package: str, setting: str) -> tuple[ModuleType, Callable]:
  """Returns the function of `function`, and the module that it is in."""
  where, colon, name = path.rpartition(":")
  if not colon:
    head, _, name = path.rpartition(".")
    if not head:
      raise SettingError(
        f'{setting}={path!r}: give "module.function" of {package}, "package.module:function" or '
        '"file.py:function"'
      )
    where = f"{package}.{head}"
  shown = f"{setting}={path!r}"
  found = _file(where, shown) if where.endswith(".py") else _import(where, package, shown)
  if not callable(vars(found).get(name)):
    raise SettingError(f"{shown}: {where} has no function {name!r}; it has {_functions(found)}")
  if reason := calls.not_for_this(vars(found)[name]):
    raise SettingError(
      f"{shown}: {reason}; name a function that is written for this, as file.py:function"
    )
  return found, vars(found)[name]


def objective(name: str) -> base.Objective:
  """Returns the objective that `objective.name` names: the OBJECTIVE of a module or file.

  Args:
    name: a module of grpo_jax.objectives, an import path with a dot, or a file "path/file.py".
  """
  shown = f"objective.name={name!r}"
  objective = base.of_module(module("grpo_jax.objectives", name, "objective.name"))
  if objective is None:
    raise SettingError(
      f"{shown}: has no objective; end the file with OBJECTIVE = Objective(loss), where Objective "
      "is from grpo_jax.objectives.base, or choose from grpo_jax.objectives: "
      f"{_offered('grpo_jax.objectives')}"
    )
  if mistake := base.mistake(objective):
    raise SettingError(f"{shown}: {mistake}")
  return objective


def configured(section: ConfigDict) -> base.ConfiguredObjective:
  """Returns the objective that the `objective` section chooses, with its settings, once checked."""
  found = objective(section.name)
  defaults = objective_defaults(section.name)
  base.check_names(found, section)
  kinds.check_like(
    {each: section[each] for each in section if each != "name"}, defaults, "objective."
  )
  calls.call(
    f"objective.name={section.name!r}",
    "check",
    "nothing, and raise SettingError",
    found.check,
    section,
  )
  advantage = _advantage(section, defaults) if "advantage" in section else None
  return base.ConfiguredObjective(found, FrozenConfigDict(section.to_dict()), advantage)


def objective_defaults(name: str) -> ConfigDict:
  """Returns the settings of the objective that `objective.name` names, with their defaults."""
  found = objective(name)
  shown, expects = f"objective.name={name!r}", "a ConfigDict with a default for each setting"
  defaults = calls.call(shown, "settings", expects, found.settings)
  if not isinstance(defaults, ConfigDict):
    came = f"a {type(defaults).__name__}"
    raise SettingError(
      f"{shown}: settings ({calls.place(found.settings)}) returned {came}; it should return "
      f"{expects}"
    )
  return defaults


def _advantage(section: ConfigDict, defaults: ConfigDict) -> Callable:
  """Returns the function that `section.advantage` names, with its keyword-only parameters filled
  from the section.
  """
  path = section.advantage
  shown = f"objective.advantage = {path!r}"
  shipped = {
    name: f for name, f in vars(advantages).items() if inspect.isfunction(f) and _takes_rollouts(f)
  }
  if ":" not in path and path not in shipped:
    raise SettingError(
      f'{shown}: use {", ".join(shipped)}, or a function of yours: "package.module:function" or '
      '"file.py:function"'
    )
  found = (
    function(path, "grpo_jax.objectives", "objective.advantage") if ":" in path else shipped[path]
  )
  first, *rest = [*inspect.signature(found).parameters.values()] or [None]
  named = {p.name: p for p in rest if p.kind is p.KEYWORD_ONLY}
  if first is None or first.kind is first.KEYWORD_ONLY or len(named) < len(rest):
    raise SettingError(
      f"{shown}: takes {inspect.signature(found)}; it should take rollouts, and settings by keyword"
    )
  for name in shared_settings.advantage():
    if (
      name != "advantage"
      and name in section
      and name not in named
      and section[name] != defaults[name]
    ):
      raise SettingError(
        f"{name}={section[name]!r} with {shown}, which does not read it: use {defaults[name]!r}"
      )
  for name, parameter in named.items():
    if name not in section and parameter.default is parameter.empty:
      raise SettingError(
        f"{shown}: {name} is no setting of objective={section.name!r}; give it a default"
      )
  return _bind(found, tuple((name, section[name]) for name in named if name in section))


@functools.cache
def _bind(advantage: Callable, settings: tuple[tuple[str, Any], ...]) -> Callable:
  """Returns the function with its settings: the same object for the same ones, so that what is
  jitted with it is compiled once.
  """
  return functools.partial(advantage, **dict(settings))


def _takes_rollouts(function: Callable) -> bool:
  """Returns whether the function's first parameter is called so."""
  return next(iter(inspect.signature(function).parameters), "") == "rollouts"


def train_sources(cfg: Any) -> tuple[list[Sequence[Example]], list[float]]:
  """Returns the data sets to train on and their weights: `cfg.mixture`, or `cfg.name` and
  `cfg.path`.

  Args:
    cfg: the data section.
  """
  entries = train_entries(cfg)
  setting = "data.mixture" if cfg.mixture else "data.name"
  sources = [_source(name, path, cfg.train, cfg, setting) for name, path, _ in entries]
  return sources, [weight for *_, weight in entries]


def train_entries(cfg: Any) -> list[tuple[str, str, float]]:
  """Returns (name, path, weight) of each data set to train on.

  Args:
    cfg: the data section.

  Raises:
    SettingError: an entry of `cfg.mixture` that is not of this form, a path that cannot be read, or
      a weight that makes no share.
  """
  entries = [triple(entry, "data.mixture", "(name, path, weight)") for entry in cfg.mixture]
  for _, path, _ in entries:
    storage.check("data.mixture", path)
  weights = [weight for *_, weight in entries]
  if entries and not (min(weights) > 0 and max(weights) / min(weights) <= LARGEST_WEIGHT):
    raise SettingError(
      f"data.mixture has weights {weights}: use positive numbers, the largest at most 1,000,000 "
      "times the least"
    )
  return entries or [(cfg.name, cfg.path, 1.0)]


def _takes_completions(function: Any) -> bool:
  """Returns whether it is a function of an example and its completion, or completions, and so a
  reward.
  """
  names = [*inspect.signature(function).parameters][:2] if inspect.isfunction(function) else []
  return names in (["example", "completion"], ["example", "completions"])


def triple(entry: Any, setting: str, form: str, most: int = 3) -> tuple[str, str, float]:
  """Returns the first three of an entry: two texts and a number; one of `rewards.functions` may
  have a fourth.
  """
  fits = isinstance(entry, tuple | list) and 3 <= len(entry) <= most
  fits = (
    fits and kinds.is_text(entry[0]) and kinds.is_path(entry[1]) and kinds.Number().fits(entry[2])
  )
  if not fits or not all(isinstance(more, Mapping) for more in entry[3:]):
    raise SettingError(
      f"{setting} has {kinds.shown(entry)}: give {form}, and a comma after a single one"
    )
  return entry[0], entry[1], float(entry[2])


def eval_source(cfg: Any) -> Sequence[Example]:
  """Returns the data set to evaluate on: `cfg.test_name` and `cfg.test_path`, or training's where
  both are empty.

  Raises:
    SettingError: it would be the file, or the split of a data set, that is trained on.
  """
  name, path = (
    (cfg.test_name or cfg.name, cfg.test_path)
    if cfg.test_name or cfg.test_path
    else (cfg.name, cfg.path)
  )
  trained = [path for _, path, _ in cfg.mixture] or [cfg.path]
  if (
    path
    and storage.place(path).is_file()
    and any(storage.place(path) == storage.place(each) for each in trained)
  ):
    raise SettingError(
      f"data.test_path: {path} is the file that is trained on; give another, or a folder with "
      f"{cfg.train}.jsonl and {cfg.test}.jsonl as data.path"
    )
  if cfg.train == cfg.test and (name, path) in [
    (name, path) for name, path, _ in train_entries(cfg)
  ]:
    raise SettingError(
      f"data.test={cfg.test!r}: is the split that is trained on (data.train), of the same data; "
      "give another of them"
    )
  return _source(name, path, cfg.test, cfg, "data.test_name" if cfg.test_name else "data.name")


def data(name: str, setting: str = "data.name") -> ModuleType:
  """Returns the data set that `data.name` names: a module as grpo_jax/data/__init__.py describes
  it.

  Args:
    name: a module of grpo_jax.data, an import path with a dot, or a file "path/file.py".
    setting: what the name was the value of.

  Raises:
    SettingError: there is none, it fails to import, or it is no data set.
  """
  found = module("grpo_jax.data", name, setting)
  for needed in ("settings()", "source(split, path, cfg)"):
    if needed.partition("(")[0] not in vars(found):
      raise SettingError(
        f"{setting}={name!r}: has no function {needed}; grpo_jax.data has "
        f"{_offered('grpo_jax.data')}"
      )
  return found


def data_section(name: str) -> str:
  """Returns the name of a data set's own section inside `data`: the last word of what `data.name`
  names.
  """
  return pathlib.Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


def _source(name: str, path: str, split: str, cfg: Any, setting: str) -> Sequence[Example]:
  """Returns a split of a data set, with the settings of its section, or its own defaults where the
  config has none.
  """
  found, section = data(name, setting), data_section(name)
  settings = found.settings()
  if section in cfg:
    kinds.check_like(cfg[section], settings, f"data.{section}.")
    settings = cfg[section]
  with deadline.in_folder(f"{setting}={name!r}"):
    return found.source(split, path, settings)


def _import(path: str, package: str, shown: str) -> ModuleType:
  if not all(part.isidentifier() for part in path.split(".")):
    raise SettingError(f"{shown}: not the name of a module; {package} has {_offered(package)}")
  try:
    with deadline.in_folder(shown):
      found = importlib.import_module(path)
    if path.split(".")[0] != "grpo_jax" and getattr(found, "__file__", None):
      loaded[path] = inputs.describe_file(found.__file__)
    return found
  except ModuleNotFoundError as error:
    if error.name is None or not f"{path}.".startswith(f"{error.name}."):
      raise SettingError(f"{shown}: {path} needs {error.name}, which is not installed") from error
    raise SettingError(f"{shown}: no module {path}; {package} has {_offered(package)}") from error
  except (Exception, SystemExit) as error:  # a user's module: anything
    raise SettingError(
      f"{shown}: {path} fails to import: {type(error).__name__}: {error}"
    ) from error


def _file(where: str, shown: str) -> ModuleType:
  """Returns a user's file as a module; `shown` is the setting that names it, with its value."""
  if not os.path.isfile(where):
    raise SettingError(f"{shown}: no such file {where}")
  loaded.setdefault(where, inputs.describe_file(where))
  try:
    with deadline.in_folder(shown):
      return _run(pathlib.Path(where).resolve())
  except (Exception, SystemExit) as error:  # a user's file: anything
    raise SettingError(
      f"{shown}: {where} fails to import: {type(error).__name__}: {error}"
    ) from error


@functools.cache
def _run(file: pathlib.Path) -> ModuleType:
  """Runs a file as a module, once in a process, however many settings name it."""
  spec = importlib.util.spec_from_file_location(f"user_{file.stem}", file)
  assert spec is not None and spec.loader is not None
  loaded = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loaded)
  return loaded


def _functions(found: ModuleType) -> str:
  """Returns the names of a module's own public functions."""
  own = [
    name
    for name, f in vars(found).items()
    if inspect.isfunction(f) and f.__module__ == found.__name__
  ]
  return ", ".join(sorted(name for name in own if name[0] != "_")) or "none"


def _offered(package: str) -> str:
  """Returns the names of the modules of a package that a setting can name."""
  folder = pathlib.Path(importlib.import_module(package).__path__[0])
  names = sorted(each.stem for each in folder.glob("*.py") if each.stem != "__init__")
  fits = {
    "grpo_jax.objectives": lambda found: base.of_module(found) is not None,
    "grpo_jax.data": lambda found: "source" in vars(found),
    "grpo_jax.rewards": lambda found: any(map(_takes_completions, vars(found).values())),
  }.get(package, lambda _: True)
  return ", ".join(name for name in names if fits(importlib.import_module(f"{package}.{name}")))
