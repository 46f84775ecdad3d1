"""Loads the config that a config file makes; a file that makes none is refused with one line."""

import difflib
import importlib.util
import os
import traceback

from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax.errors import GrpoError, SettingError


def load(path: str) -> ConfigDict:
  """Returns the config that `FILE[:arguments]` makes; refuses a file that makes none."""
  file, *arg = path.split(":", 1)
  if not os.path.isfile(file):
    raise SettingError(_no_such_file(file))
  if not file.endswith(".py"):
    raise SettingError(f"--config={path}: {file} is no Python file; its name should end in .py")
  try:
    spec = importlib.util.spec_from_file_location("config", file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(*arg)
  except GrpoError as error:
    raise SettingError(f"--config={path}: {error}") from error
  except SystemExit as error:
    raise SettingError(
      f"--config={path}: it ends the program, sys.exit({error.code!r}); return a config"
    ) from error
  except Exception as error:  # a config file may raise anything
    lines = [
      f.lineno
      for f in traceback.extract_tb(error.__traceback__)
      if f.filename == os.path.abspath(file)
    ]
    raise SettingError(
      f"--config={path}: {':'.join([file, *map(str, lines[-1:])])}: {type(error).__name__}: {error}"
    ) from error
  if not isinstance(config, ConfigDict) or isinstance(config, FrozenConfigDict):
    raise SettingError(
      f"--config={path}: its get_config() must return an ml_collections.ConfigDict, not "
      f"{type(config).__name__}"
    )
  return config


def _no_such_file(path: str) -> str:
  """Returns the message for a config file that does not exist, with a similar name if any."""
  folder = os.path.dirname(path) or "."
  beside = [os.path.join(os.path.dirname(path), f) for f in _listdir(folder) if f.endswith(".py")]
  close = difflib.get_close_matches(path, beside, 1, 0.8)
  hint = f"; did you mean {' or '.join(close)}?" if close else ", seen from " + os.getcwd()
  return f"--config={path}: no such file{hint}"


def _listdir(folder: str) -> list[str]:
  """Returns the names in a folder, none if there is no such folder."""
  try:
    return sorted(os.listdir(folder))
  except OSError:
    return []
