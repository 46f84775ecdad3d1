"""Calls functions of a user, and explains which one failed or cannot be called."""

import functools
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

import jax

from grpo_jax.errors import GrpoError, SettingError

# the message of ml_collections for a setting that is not there
_A_NAME = re.compile(r"""["'\\]*\w+["'\\]+(nDid you mean .*)?""")


def call(shown: str, name: str, expects: str, function: Callable, *args: Any) -> Any:
  """Returns `function(*args)`, which may be a user's, or raises a SettingError if it fails.

  Args:
    shown: the setting that names its file, with its value.
    name: of the function.
    expects: what it should return.
    function: what is called.
    *args: its arguments.
  """
  try:
    return function(*args)
  except GrpoError:
    raise
  except (Exception, SystemExit) as error:
    first = (str(error).strip().splitlines() or [""])[0][:300]
    raise SettingError(
      f"{shown}: {name} ({place(function, error)}) failed, {type(error).__name__}: {first}"
      f"{_hint(name, function, error, first)}; it should return {expects}"
    ) from error


def _hint(name: str, function: Callable, error: BaseException, first: str) -> str:
  """Returns what often causes such an error, in brackets; "" if nothing is known.

  Args:
    name: of the function.
    function: that was called.
    error: that it raised.
    first: line of its message.
  """
  branches = "truth value of an array" in first and name not in ("check", "settings", "needs")
  if branches or isinstance(error, jax.errors.JAXTypeError):
    return " (jax traces it, so that it sees no values: use jnp.where for an `if`)"
  missing = isinstance(error, KeyError | AttributeError) and _A_NAME.fullmatch(first)
  if missing and name != "the function":  # an advantage has arguments, and no settings
    return (
      " (where that is a setting, `settings` does not give it: add yours to those of the objective "
      f"whose {name} it is, as in c = grpo.settings())"
    )
  if "NoneType" in first and any(
    "old_logprobs" in (x.line or "") for x in _frames(function, error)
  ):
    return (
      " (batch.old_logprobs is None in a single update by the policy that sampled: use "
      "common.policies)"
    )
  return ""


def place(function: Callable, error: BaseException | None = None) -> str:
  """Returns the file of a function, and the line of an error or else of its definition."""
  below = written(function)
  code = getattr(below, "__code__", None)
  if code is None:
    return type(below).__name__
  lines = [frame.lineno for frame in _frames(function, error)] if error else []
  return f"{code.co_filename}, line {lines[-1] if lines else code.co_firstlineno}"


def _frames(function: Callable, error: BaseException) -> list[traceback.FrameSummary]:
  """Returns what of an error's traceback is in the file of a function."""
  code = getattr(written(function), "__code__", None)
  file = code.co_filename if code else None
  return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]


def written(function: Callable) -> Callable:
  """Returns the function below decorators and partials, or the `__call__` of an object."""
  while True:
    inner = function.func if isinstance(function, functools.partial) else inspect.unwrap(function)
    if inner is function:
      break
    function = inner
  inside = type(function).__call__
  return inside if inspect.isfunction(inside) else function


def not_for_this(function: Callable) -> str:
  """Returns why a setting may not name this function; "" if it may.

  Functions of Python's own library, such as os.remove, do not score or give credit.
  """
  if inspect.isclass(function):
    return "is a class"
  below = written(function)
  if not inspect.isfunction(below) and not inspect.ismethod(below):
    return "is not written in Python"
  file = below.__code__.co_filename
  library = (
    file.startswith(sysconfig.get_path("stdlib") + os.sep) and "-packages" + os.sep not in file
  )
  return "is of Python's own library" if library or file.startswith("<frozen ") else ""
