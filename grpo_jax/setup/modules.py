"""Loads the modules and functions that settings name, from this package or from a user's files."""

import contextlib
import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from grpo_jax.distributed import inputs
from grpo_jax.errors import SettingError
from grpo_jax.objectives import base
from grpo_jax.sandbox import deadline
from grpo_jax.setup import calls

# The digests of a user's code (`inputs.describe_file`), by the name that settings have for it.
loaded: dict[str, str] = {}
# The digest and the module of each user's file that was run.
_files: dict[pathlib.Path, tuple[str, ModuleType]] = {}


def module(package: str, name: str, setting: str) -> ModuleType:
  """Returns the module that a setting names.

  Args:
    package: that holds plain names, such as "grpo_jax.data".
    name: a module of `package`, an import path with a dot, or a file "path/file.py".
    setting: whose value the name is.
  """
  shown = f"{setting}={name!r}"
  if name.endswith(".py"):
    return _load_file(name, shown)
  return _import(name if "." in name else f"{package}.{name}", package, shown)


def function(path: str, package: str, setting: str) -> Callable:
  """Returns a function by "module.function" of `package`, "package.module:f" or "file.py:f"."""
  return with_module(path, package, setting)[1]


def with_module(path: str, package: str, setting: str) -> tuple[ModuleType, Callable]:
  """Returns the function of `function`, after its module."""
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
  code = _load_file(where, shown) if where.endswith(".py") else _import(where, package, shown)
  chosen = vars(code).get(name)
  if not callable(chosen):
    raise SettingError(
      f"{shown}: {where} has no function {name!r}; it has {_functions(code, package)}"
    )
  if reason := calls.not_for_this(chosen):
    raise SettingError(
      f"{shown}: {reason}; name a function that is written for this, as file.py:function"
    )
  return code, chosen


def offered(package: str) -> str:
  """Returns the names of the modules of a package that a setting can name."""
  folder = pathlib.Path(importlib.import_module(package).__path__[0])
  names = sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")
  fits: dict[str, Callable[[ModuleType], bool]] = {
    "grpo_jax.objectives": lambda code: base.find_objective(code) is not None,
    "grpo_jax.loops": lambda code: "train" in vars(code),
    "grpo_jax.data": lambda code: "source" in vars(code),
    "grpo_jax.environments": lambda code: "step" in vars(code),
    "grpo_jax.rewards": lambda code: any(map(_is_reward, vars(code).values())),
  }
  if fit := fits.get(package):  # only these are all there: others may need a package
    names = [name for name in names if fit(importlib.import_module(f"{package}.{name}"))]
  return ", ".join(names)


def _is_reward(value: Any) -> bool:
  """Returns whether a value is a function of an example and its completion or completions."""
  names = [*inspect.signature(value).parameters][:2] if inspect.isfunction(value) else []
  return names in (["example", "completion"], ["example", "completions"])


def _import(path: str, package: str, shown: str) -> ModuleType:
  """Returns the module of an import path; `shown` is the setting with its value."""
  if not all(part.isidentifier() for part in path.split(".")):
    raise SettingError(f"{shown}: not the name of a module; {package} has {offered(package)}")
  try:
    with deadline.in_folder(shown):
      code = importlib.import_module(path)
    file = getattr(code, "__file__", None)
    if path.split(".")[0] != "grpo_jax" and file:
      loaded[path] = inputs.describe_file(file)
    return code
  except ModuleNotFoundError as error:
    if error.name is None or not f"{path}.".startswith(f"{error.name}."):
      raise SettingError(f"{shown}: {path} needs {error.name}, which is not installed") from error
    raise SettingError(f"{shown}: no module {path}; {package} has {offered(package)}") from error
  except (Exception, SystemExit) as error:  # a user's module: anything
    raise SettingError(
      f"{shown}: {path} fails to import: {type(error).__name__}: {error}"
    ) from error


def _load_file(where: str, shown: str) -> ModuleType:
  """Returns a user's file as a module; `shown` is the setting with its value."""
  if not os.path.isfile(where):
    raise SettingError(f"{shown}: no such file {where}, seen from {os.getcwd()}{_near(where)}")
  file = pathlib.Path(where).resolve()
  try:
    with deadline.in_folder(shown):
      if file not in _files:  # run once, however many settings name it
        _files[file] = (inputs.describe_file(file), _run(file))
  except (Exception, SystemExit) as error:  # a user's file: anything
    raise SettingError(
      f"{shown}: {where} fails to import: {type(error).__name__}: {error}"
    ) from error
  loaded[where], code = _files[file]
  return code


def _near(where: str) -> str:
  """Returns a question whether another file of the folder was meant; "" if none has such a name."""
  folder, name = os.path.split(where)
  with contextlib.suppress(OSError):
    for near in difflib.get_close_matches(name, os.listdir(folder or "."), 1):
      return f"; did you mean {os.path.join(folder, near)}?"
  return ""


def absolute(path: str) -> str:
  """Returns what a setting names, with the absolute path of its file if it names one."""
  file = _file_named(path)
  return f"{pathlib.Path(file).resolve()}{path[len(file) :]}" if file else path


def contents(paths: Iterable[str]) -> str:
  """Returns a text that changes with the contents of the files that settings name."""
  return "; ".join(inputs.describe_file(file) for file in map(_file_named, paths) if file)


def _file_named(path: str) -> str:
  """Returns the file of "path/file.py" or "path/file.py:function"; "" for anything else."""
  file = path if path.endswith(".py") else path.rpartition(":")[0]
  return file if file.endswith(".py") else ""


def forget_changed() -> None:
  """Forgets the user's files that have changed since they were run, so that they are run again.

  It is called where an experiment begins. A notebook edits a file and starts another run in the
  same process, while an edit must not reach a run that is going on.
  """
  for file, (digest, _) in list(_files.items()):
    if inputs.describe_file(file) != digest:
      del _files[file]
      # the next run may not name it, and then does not depend on it
      for where in [name for name in loaded if pathlib.Path(name).resolve() == file]:
        del loaded[where]


def _run(file: pathlib.Path) -> ModuleType:
  """Runs a file as a module, from its text.

  A compiled copy beside it may be that of an edit within the same second. While it runs the module
  is among sys.modules, where dataclasses look for the types of their fields.
  """
  loader = importlib.machinery.SourceFileLoader(f"user_{file.stem}", str(file))
  spec = importlib.util.spec_from_loader(loader.name, loader)
  assert spec is not None
  sys.modules[loader.name] = code = importlib.util.module_from_spec(spec)
  try:
    exec(loader.source_to_code(file.read_bytes(), str(file)), vars(code))
  finally:
    del sys.modules[loader.name]  # else it would be a second file that the run depends on
  return code


def _functions(code: ModuleType, package: str) -> str:
  """Returns the names of the public functions that a module defines; of rewards, if it has some."""
  found = {
    name: value
    for name, value in vars(code).items()
    if inspect.isfunction(value) and value.__module__ == code.__name__ and name[0] != "_"
  }
  rewards = {name: value for name, value in found.items() if _is_reward(value)}
  shown = rewards if package == "grpo_jax.rewards" and rewards else found
  return ", ".join(sorted(shown)) or "none"
