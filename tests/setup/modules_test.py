"""Modules and functions that settings name."""

import sys

import objective_cases as cases
import pytest
from ml_collections import ConfigDict
from registry_test import _rewards

from grpo_jax.errors import SettingError
from grpo_jax.rewards import length, math
from grpo_jax.setup import modules, scorers
from grpo_jax.types import Completion, Example


def test_functions(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text("def short(example, completion):\n  return -len(completion.tokens)\nlimit = 3\n")

  def find(path):
    return modules.function(path, "grpo_jax.rewards", "rewards.functions")

  assert find("math.answer_correct") is math.answer_correct
  assert find("grpo_jax.rewards.length:overlong") is length.overlong
  assert find(f"{file}:short")(Example("", "", "", {}), Completion("", [1, 2], 1, [])) == -2
  for path, message in (
    ("math.answer", "has no function 'answer'; it has answer_correct, well_formed$"),
    ("math", 'give "module.function"'),
    ("maths.answer_correct", "no module grpo_jax.rewards.maths; grpo_jax.rewards has .*math"),
    ("no_package.rewards:f", "no module no_package"),
    (f"{file}:limit", "has no function 'limit'"),
    (f"{tmp_path}/other.py:f", "no such file .*/other.py, seen from [^;]*$"),
    (f"{tmp_path}/mime.py:f", "no such file .*/mime.py, seen from .*; did you mean .*/mine.py[?]$"),
  ):
    with pytest.raises(SettingError, match=message) as error:
      find(path)
    assert "rewards.functions" in str(error.value) and "\n" not in str(error.value)


def test_a_file_may_have_dataclasses_whose_types_are_text(tmp_path):
  """These look for their module by its name; two files may have one name."""
  for folder, value in (("a", 1), ("b", 2)):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "own.py").write_text(
      "from __future__ import annotations\nimport dataclasses\n"
      f"@dataclasses.dataclass\nclass State:\n  x: int = {value}\n"
      "def reward(example, completion):\n  return State().x\n"
    )
  rewards = [
    modules.function(f"{tmp_path}/{folder}/own.py:reward", "grpo_jax.rewards", "rewards.functions")
    for folder in "ab"
  ]
  assert [reward(None, None) for reward in rewards] == [1, 2]
  (tmp_path / "bad.py").write_text("raise ValueError('no')")
  with pytest.raises(SettingError, match="fails to import: ValueError: no"):
    modules.function(f"{tmp_path}/bad.py:f", "grpo_jax.rewards", "rewards.functions")
  assert not [name for name in sys.modules if name.startswith("user_")]


@pytest.mark.parametrize(
  "name, reason",
  [
    ("os:system", "is not written in Python"),
    ("os:remove", "is not written in Python"),
    ("builtins:print", "is not written in Python"),
    ("math:gcd", "is not written in Python"),
    ("numpy:add", "is not written in Python"),
    ("shutil:rmtree", "is of Python's own library"),
    ("shutil:move", "is of Python's own library"),
    ("os.path:join", "is of Python's own library"),
    ("subprocess:run", "is of Python's own library"),
    ("pathlib:Path", "is a class"),
    ("FILE:removed", "is not written in Python"),
    ("FILE:moved", "is of Python's own library"),
    ("FILE:Scored", "is a class"),
  ],
)
def test_a_function_of_python_itself_is_refused_and_not_called(name, reason, tmp_path):
  (tmp_path / "own.py").write_text(OWN_CALLABLES)
  name = name.replace("FILE", f"{tmp_path}/own.py")
  arithmetic_eval = ConfigDict({"reward": name, "arguments": ()})
  for find in (
    lambda: modules.function(name, "grpo_jax.rewards", "offline.require"),
    lambda: scorers.reward_functions(_rewards(("a", name, 1.0)), []),
    lambda: scorers.eval_reward(arithmetic_eval),
    lambda: cases.settings(advantage=name),
  ):
    with pytest.raises(SettingError) as error:
      find()
    assert f"{name!r}: {reason}; name a function that is written for this" in str(error.value)


OWN_CALLABLES = """
import functools, os, shutil

class Scored:
  def __init__(self, example, completion):
    pass

  def __call__(self, example, completion):
    return 1.0

def plain(example, completion, value=1.0):
  return value

def decorated(function):
  @functools.wraps(function)
  def inner(*args):
    return function(*args)
  return inner

wrapped, cached, half = decorated(plain), functools.lru_cache(plain), functools.partial(plain, value=0.5)
instance = Scored(None, None)
method = instance.__call__
removed, moved = functools.partial(os.remove, "x"), functools.partial(shutil.move, "x")
"""


@pytest.mark.parametrize(
  "name, value", [("plain", 1), ("wrapped", 1), ("cached", 1), ("half", 0.5), ("instance", 1)]
)
def test_a_decorated_function_of_ones_own_is_taken(name, value, tmp_path):
  (tmp_path / "own.py").write_text(OWN_CALLABLES)
  found = modules.function(f"{tmp_path}/own.py:{name}", "grpo_jax.rewards", "rewards.functions")
  assert found("example", "completion") == value


def test_a_file_that_fails_to_import(tmp_path):
  (tmp_path / "bad.py").write_text("1 / 0\n")
  with pytest.raises(SettingError, match="fails to import: ZeroDivisionError"):
    modules.function(f"{tmp_path}/bad.py:f", "grpo_jax.rewards", "rewards.functions")


def test_a_module_that_needs_another(tmp_path, monkeypatch):
  (tmp_path / "needs_it.py").write_text("import not_installed\n")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(SettingError, match="needs not_installed, which is not installed"):
    modules.function("needs_it:f", "grpo_jax.rewards", "rewards.functions")


def test_a_file_is_run_once_and_again_when_it_has_changed_before_another_run(tmp_path):
  """Edits a file between two runs, as in a notebook: within a second and to the same size."""
  file, other = tmp_path / "mine.py", tmp_path / "other.py"
  file.write_text("def f(example, completion):\n  return 1.0\n")
  other.write_text("def f(example, completion):\n  return 5.0\n")

  def find(path):
    return modules.function(f"{path}:f", "grpo_jax.rewards", "rewards.functions")

  first, kept, digest = find(file), find(other), modules.loaded[str(file)]
  file.write_text("def f(example, completion):\n  return 2.0\n")
  assert find(file) is first and modules.loaded[str(file)] == digest
  modules.forget_changed()
  # a run that does not name it does not depend on it
  assert str(file) not in modules.loaded and str(other) in modules.loaded
  assert find(file)(None, None) == 2.0 and modules.loaded[str(file)] != digest
  assert find(other) is kept
