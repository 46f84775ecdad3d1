"""Dicts and lists that cannot be changed."""

import copy
import json
import pickle

import numpy as np
import pytest

from grpo_jax.frozen import freeze

VALUE = {"a": [1, {"b": 2}], "c": (3, [4])}


@pytest.mark.parametrize(
  "change",
  [
    lambda x: x.update(a=1),
    lambda x: x.pop("a"),
    lambda x: x.__delitem__("a"),
    lambda x: x.setdefault("d", 1),
    lambda x: x.__ior__({"d": 1}),
    lambda x: x["a"].append(1),
    lambda x: x["a"].sort(),
    lambda x: x["a"].__setitem__(0, 2),
    lambda x: x["a"].__iadd__([1]),
    lambda x: x["a"][1].clear(),
    lambda x: x["c"][1].extend([5]),
  ],
)
def test_nothing_is_changed_at_any_depth(change):
  frozen = freeze(VALUE)
  with pytest.raises(TypeError, match="change a copy: copy.deepcopy"):
    change(frozen)
  assert frozen == VALUE


@pytest.mark.parametrize(
  "make",
  [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: json.loads(json.dumps(x))],
)
def test_a_copy_can_be_changed(make):
  copied = make(freeze({"a": [1, {"b": 2}]}))
  copied["a"][1]["b"] = 3
  copied["a"].append(4)
  assert copied == {"a": [1, {"b": 3}, 4]}


def test_a_shallow_copy_is_plain_on_its_first_level():
  frozen = freeze(VALUE)
  copied, listed = copy.copy(frozen), list(frozen["a"])
  copied["d"], listed[0] = 1, 2
  assert type(copied) is dict and frozen == VALUE


def test_other_containers():
  assert freeze({1, 2}) == frozenset({1, 2}) and freeze(bytearray(b"a")) == b"a"
  array = np.zeros(2)
  with pytest.raises(ValueError, match="read-only"):
    freeze(array)[0] = 1
  array[0] = 1  # the data set's own
  own = type("Own", (list,), {})([1])
  assert freeze(own) is own
