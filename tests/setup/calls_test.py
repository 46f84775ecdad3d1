"""A user's function is called, or it is said where it failed."""

import functools
import os
import re

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.errors import DataError, SettingError
from grpo_jax.setup import calls


def fails(x):
  raise KeyError("one\nand more")


def branches(x):
  return 1 if x > 0 else 2


def leaves(x):
  raise SystemExit(0)


def line_of(function) -> int:
  return function.__code__.co_firstlineno


def test_a_result_is_passed_on():
  assert calls.call("a='b'", "f", "a number", lambda x: x + 1, 2) == 3


@pytest.mark.parametrize(
  ("function", "said"), [(fails, "KeyError: 'one"), (leaves, "SystemExit: 0")]
)
def test_an_error_is_one_line_with_its_place(function, said):
  place = re.escape(f"f ({__file__}, line {line_of(function) + 1}) failed, {said}")
  with pytest.raises(SettingError, match=f"^a='b': {place}.*; it should return a number$"):
    calls.call("a='b'", "f", "a number", function, 2)


def test_a_branch_on_a_traced_value_has_a_hint():
  call = functools.partial(calls.call, "a='b'", "f", "a number", branches)
  with pytest.raises(SettingError, match="use jnp.where for an `if`"):
    jax.eval_shape(call, jnp.zeros(()))


def test_an_error_that_is_meant_to_be_read_stays_as_it_is():
  def refuses():
    raise DataError("my.jsonl: is empty")

  with pytest.raises(DataError, match="^my.jsonl: is empty$"):
    calls.call("a='b'", "f", "a number", refuses)


class Callable:
  def __call__(self, x):
    return x


def test_the_function_below_decorators_and_partials():
  @functools.wraps(branches)
  def decorated(x):
    return branches(x)

  for function in (branches, decorated, functools.partial(decorated, 1), jax.jit(branches)):
    assert calls.written(function) is branches
    assert calls.place(function) == f"{__file__}, line {line_of(branches)}"
  assert calls.written(Callable()) is Callable.__call__


@pytest.mark.parametrize(
  ("function", "reason"),
  [
    (branches, ""),
    (Callable(), ""),
    (jnp.where, ""),
    (Callable, "is a class"),
    (len, "is not written in Python"),
    (os.makedirs, "is of Python's own library"),
    (functools.partial(os.makedirs, "a"), "is of Python's own library"),
  ],
)
def test_which_functions_a_setting_may_not_name(function, reason):
  assert calls.not_for_this(function) == reason
