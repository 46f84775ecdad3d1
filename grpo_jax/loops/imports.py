"""From names in a config to modules and functions: data sets, rewards, objectives and their advantages."""

import functools
import importlib
import importlib.util
import inspect
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import advantages, contract
from grpo_jax.types import Example


def module(package: str, name: str, setting: str) -> ModuleType:
  """Returns the module that a config names.

  Args:
    package: where a plain name is looked for, such as "grpo_jax.data".
    name: a module of `package`, an import path with a dot, or a file "path/file.py".
    setting: what the name was the value of.

  Raises:
    SettingError: there is none, or it fails to import; names `setting`.
  """
  if name.endswith(".py"):
    return _file(name, setting)
  return _import(name if "." in name else f"{package}.{name}", package, f"{setting} = {name!r}")


def function(path: str, package: str, setting: str) -> Callable:
  """Returns a function by "module.function" of `package`, "package.module:function" or "path/file.py:function".

  Raises:
    SettingError: no such module, file or function; names `setting`.
  """
  where, colon, name = path.rpartition(":")
  if not colon:
    head, _, name = path.rpartition(".")
    if not head:
      raise SettingError(
        f'{setting} = {path!r}: give "module.function" of {package}, "package.module:function" or "file.py:function"'
      )
    where = f"{package}.{head}"
  found = _file(where, setting) if where.endswith(".py") else _import(where, package, f"{setting} = {path!r}")
  if not callable(vars(found).get(name)):
    raise SettingError(f"{setting} = {path!r}: {where} has no function {name!r}; it has {_functions(found)}")
  return vars(found)[name]


def objective(name: str) -> contract.Objective:
  """Returns the objective that `objective.name` names: a module that holds all of objectives/contract.py.

  Args:
    name: a module of grpo_jax.objectives, an import path with a dot, or a file "path/file.py".

  Raises:
    SettingError: there is none, it fails to import, or it lacks a name of the contract.
  """
  found = module("grpo_jax.objectives", name, "objective.name")
  contract.complete(found, name)
  return found


def objective_settings(section: ConfigDict) -> FrozenConfigDict:
  """Returns the `objective` section as the objective's functions take it, once it is checked.

  Where it has an `advantage`, that is the function it names in place of the name, to be called with rollouts alone.

  Raises:
    SettingError: the section is another objective's, a value that the objective refuses, or an advantage that is not
      there or does not fit the settings.
  """
  found = objective(section.name)
  contract.check(found, section)
  if "advantage" not in section:
    return FrozenConfigDict(section.to_dict())
  return FrozenConfigDict(section.to_dict() | {"advantage": _advantage(section, found.settings())})


def _advantage(section: ConfigDict, defaults: ConfigDict) -> Callable:
  """Returns the function that `section.advantage` names, with its keyword-only parameters filled from the section."""
  path = section.advantage
  shown = f"objective.advantage = {path!r}"
  shipped = {name: f for name, f in vars(advantages).items() if inspect.isfunction(f) and _takes_rollouts(f)}
  if ":" not in path and path not in shipped:
    raise SettingError(
      f'{shown}: use {", ".join(shipped)}, or a function of yours: "package.module:function" or "file.py:function"'
    )
  found = function(path, "grpo_jax.objectives", "objective.advantage") if ":" in path else shipped[path]
  first, *rest = [*inspect.signature(found).parameters.values()] or [None]
  named = {p.name: p for p in rest if p.kind is p.KEYWORD_ONLY}
  if first is None or first.kind is first.KEYWORD_ONLY or len(named) < len(rest):
    raise SettingError(f"{shown}: takes {inspect.signature(found)}; it should take rollouts, and settings by keyword")
  for name in advantages.settings():
    if name != "advantage" and name in section and name not in named and section[name] != defaults[name]:
      raise SettingError(f"{name}={section[name]!r} with {shown}, which does not read it: use {defaults[name]!r}")
  for name, parameter in named.items():
    if name not in section and parameter.default is parameter.empty:
      raise SettingError(f"{shown}: {name} is no setting of objective={section.name!r}; give it a default")
  return functools.partial(found, **{name: section[name] for name in named if name in section})


def _takes_rollouts(function: Callable) -> bool:
  """Returns whether the function's first parameter is called so."""
  return next(iter(inspect.signature(function).parameters), "") == "rollouts"


def rewards(cfg: Any) -> list[tuple[str, Callable, float]]:
  """Returns (name, function, weight) of each of `cfg.functions`.

  Args:
    cfg: the rewards section. A fourth entry of a function holds keyword arguments, as in
      ("overlong", "length.overlong", 1.0, {"max_length": 96, "buffer": 16}).

  Raises:
    SettingError: an entry that is not of this form, or a function that cannot be called so.
  """
  entries = []
  for entry in cfg.functions:
    if len(entry) not in (3, 4) or not isinstance(entry[2], (int, float)):
      raise SettingError(
        f"rewards.functions has {entry!r}: give (name, function, weight) or (..., keyword arguments), and a comma "
        "after a single one"
      )
    name, path, weight = entry[:3]
    found, given = function(path, "grpo_jax.rewards", "rewards.functions"), dict(*entry[3:])
    try:
      inspect.signature(found).bind("example", "completion", **given)
    except TypeError as error:
      raise SettingError(f"rewards.functions has {entry!r}: {path} cannot be called so: {error}") from error
    entries.append((name, functools.partial(found, **given) if given else found, float(weight)))
  names = [entry[0] for entry in entries]
  if not entries or len(set(names)) < len(names):
    raise SettingError(f"rewards.functions has the names {names}: give at least one, each its own name")
  return entries


def train_sources(cfg: Any) -> tuple[list[Sequence[Example]], list[float]]:
  """Returns the data sets to train on and their weights: `cfg.mixture`, or `cfg.name` and `cfg.path`.

  Args:
    cfg: the data section.
  """
  entries = list(cfg.mixture) or [(cfg.name, cfg.path, 1.0)]
  for entry in entries:
    if len(entry) != 3 or not isinstance(entry[2], (int, float)):
      raise SettingError(f"data.mixture has {entry!r}: give (name, path, weight)")
  return [_source(name, path, cfg.train, cfg) for name, path, _ in entries], [float(entry[2]) for entry in entries]


def eval_source(cfg: Any) -> Sequence[Example]:
  """Returns the data set to evaluate on: `cfg.test_name` and `cfg.test_path`, or training's where both are empty.

  Raises:
    SettingError: it would be the file that is trained on.
  """
  name, path = (cfg.test_name or cfg.name, cfg.test_path) if cfg.test_name or cfg.test_path else (cfg.name, cfg.path)
  trained = [path for _, path, _ in cfg.mixture] or [cfg.path]
  if path and pathlib.Path(path).is_file() and any(pathlib.Path(path) == pathlib.Path(each) for each in trained):
    raise SettingError(
      f"data.test_path: {path} is the file that is trained on; give another, or a folder with "
      f"{cfg.train}.jsonl and {cfg.test}.jsonl as data.path"
    )
  return _source(name, path, cfg.test, cfg)


def data(name: str) -> ModuleType:
  """Returns the data set that `data.name` names: a module as grpo_jax/data/__init__.py describes it.

  Args:
    name: a module of grpo_jax.data, an import path with a dot, or a file "path/file.py".

  Raises:
    SettingError: there is none, it fails to import, or it is no data set.
  """
  found = module("grpo_jax.data", name, "data.name")
  for needed in ("settings()", "source(split, path, cfg)"):
    if needed.partition("(")[0] not in vars(found):
      raise SettingError(f"data.name = {name!r}: {found.__name__} has no function {needed}")
  return found


def data_section(name: str) -> str:
  """Returns the name of a data set's own section inside `data`: the last word of what `data.name` names."""
  return pathlib.Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


def _source(name: str, path: str, split: str, cfg: Any) -> Sequence[Example]:
  """Returns a split of a data set, with the settings of its section, or its own defaults where the config has none."""
  found, section = data(name), data_section(name)
  return found.source(split, path, cfg[section] if section in cfg else found.settings())


def _import(path: str, package: str, shown: str) -> ModuleType:
  try:
    return importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or not f"{path}.".startswith(f"{error.name}."):
      raise SettingError(f"{shown}: {path} needs {error.name}, which is not installed") from error
    raise SettingError(f"{shown}: no module {path}; {package} has {_modules(package)}") from error


def _file(where: str, setting: str) -> ModuleType:
  """Returns a user's file as a module."""
  file = pathlib.Path(where)
  if not file.is_file():
    raise SettingError(f"{setting}: no file {where}")
  try:
    return _run(file.resolve())
  except Exception as error:  # a user's file: anything
    raise SettingError(f"{setting}: {where} fails to import: {type(error).__name__}: {error}") from error


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
  own = [name for name, f in vars(found).items() if inspect.isfunction(f) and f.__module__ == found.__name__]
  return ", ".join(sorted(name for name in own if name[0] != "_")) or "none"


def _modules(package: str) -> str:
  folder = pathlib.Path(importlib.import_module(package).__path__[0])
  return ", ".join(sorted(each.stem for each in folder.glob("*.py") if each.stem != "__init__"))
