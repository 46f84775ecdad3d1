"""From names in a config to modules and functions: data sets and rewards."""

import functools
import importlib
import importlib.util
import inspect
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType

from grpo_jax.errors import SettingError
from grpo_jax.types import Example


def module(package: str, name: str, setting: str) -> ModuleType:
  """The module `name` of `package`, or the module of that import path if it has a dot.

  Raises:
    SettingError: there is none, or it fails to import; names `setting`.
  """
  return _import(name if "." in name else f"{package}.{name}", package, f"{setting} = {name!r}")


def function(path: str, package: str, setting: str) -> Callable:
  """A function by "module.function" of `package`, "package.module:function" or "path/file.py:function".

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
  if not callable(getattr(found, name, None)):
    raise SettingError(f"{setting} = {path!r}: {where} has no function {name!r}")
  return getattr(found, name)


def rewards(cfg) -> list[tuple[str, Callable, float]]:
  """(name, function, weight) of each of `cfg.functions`: the rewards section. A fourth entry of one holds keyword
  arguments, for example ("overlong", "length.overlong", 1.0, {"max_length": 96, "buffer": 16})."""
  rows = []
  for row in cfg.functions:
    if len(row) not in (3, 4) or not isinstance(row[2], (int, float)):
      raise SettingError(f"rewards.functions has {row!r}: give (name, function, weight) or (..., keyword arguments)")
    name, path, weight = row[:3]
    found, given = function(path, "grpo_jax.rewards", "rewards.functions"), dict(*row[3:])
    try:
      inspect.signature(found).bind("example", "completion", **given)
    except TypeError as error:
      raise SettingError(f"rewards.functions has {row!r}: {path} cannot be called so: {error}") from error
    rows.append((name, functools.partial(found, **given) if given else found, float(weight)))
  names = [row[0] for row in rows]
  if not rows or len(set(names)) < len(names):
    raise SettingError(f"rewards.functions has the names {names}: give at least one, each its own name")
  return rows


def train_sources(cfg) -> tuple[list[Sequence[Example]], list[float]]:
  """The data sets to train on and their weights: `cfg.mixture`, or `cfg.name` and `cfg.path`.

  Args:
    cfg: the data section.
  """
  rows = list(cfg.mixture) or [(cfg.name, cfg.path, 1.0)]
  for row in rows:
    if len(row) != 3 or not isinstance(row[2], (int, float)):
      raise SettingError(f"data.mixture has {row!r}: give (name, path, weight)")
  return [_source(name, path, cfg.train, cfg) for name, path, _ in rows], [float(row[2]) for row in rows]


def eval_source(cfg) -> Sequence[Example]:
  """The data set to evaluate on: `cfg.test_name` and `cfg.test_path`, or those of training where both are empty.

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


def _source(name: str, path: str, split: str, cfg) -> Sequence[Example]:
  found = module("grpo_jax.data", name, "data.name")
  if not hasattr(found, "source"):
    raise SettingError(f"data.name = {name!r}: {found.__name__} has no function source(split, path, cfg)")
  return found.source(split, path, cfg)


def _import(path: str, package: str, shown: str) -> ModuleType:
  try:
    return importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or not f"{path}.".startswith(f"{error.name}."):
      raise SettingError(f"{shown}: {path} needs {error.name}, which is not installed") from error
    raise SettingError(f"{shown}: no module {path}; {package} has {_modules(package)}") from error


def _file(where: str, setting: str) -> ModuleType:
  file = pathlib.Path(where)
  if not file.is_file():
    raise SettingError(f"{setting}: no file {where}")
  spec = importlib.util.spec_from_file_location(f"user_{file.stem}", file)
  assert spec is not None and spec.loader is not None
  loaded = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(loaded)
  except Exception as error:  # a user's file: anything
    raise SettingError(f"{setting}: {where} fails to import: {type(error).__name__}: {error}") from error
  return loaded


def _modules(package: str) -> str:
  folder = pathlib.Path(importlib.import_module(package).__path__[0])
  return ", ".join(sorted(each.stem for each in folder.glob("*.py") if each.stem != "__init__"))
