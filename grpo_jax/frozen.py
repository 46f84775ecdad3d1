"""Defines dicts and lists that cannot be changed, which data sets give to a user's rewards.

They are still dicts and lists, because rewards compare them with lists, check their type and write
them as JSON. A copy (`copy.deepcopy(x)`, `list(x)`, `x.copy()`) can be changed. C functions that
take any list, such as `heapq.heapify`, can still change one: give them a copy.
"""

import copy
from typing import Any, NoReturn

import numpy as np


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
  raise TypeError(
    "what a data set gives to rewards cannot be changed; change a copy: copy.deepcopy(example.meta)"
  )


class FrozenDict(dict):
  """A dict that cannot be changed."""

  __slots__ = ()
  __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

  def __copy__(self) -> dict:
    return dict(self)

  def __deepcopy__(self, memo: dict) -> dict:
    return {copy.deepcopy(key, memo): copy.deepcopy(value, memo) for key, value in self.items()}

  def __reduce__(self) -> tuple:
    return dict, (dict(self),)


class FrozenList(list):
  """A list that cannot be changed."""

  __slots__ = ()
  __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
  append = clear = extend = insert = pop = remove = reverse = sort = _refuse

  def __copy__(self) -> list:
    return list(self)

  def __deepcopy__(self, memo: dict) -> list:
    return [copy.deepcopy(value, memo) for value in self]

  def __reduce__(self) -> tuple:
    return list, (list(self),)


def freeze(value: Any) -> Any:
  """Returns an equal value in which no container or numpy array can be changed, at any depth.

  Sets become frozensets and bytearrays bytes; arrays become read-only views. Objects of other
  classes, including subclasses of dict and list, are returned as they are.
  """
  kind = type(value)
  if kind is dict:
    return FrozenDict({key: freeze(item) for key, item in value.items()})
  if kind is list:
    return FrozenList([freeze(item) for item in value])
  if kind is tuple:
    return tuple([freeze(item) for item in value])
  if kind is set:
    return frozenset(value)
  if kind is bytearray:
    return bytes(value)
  if kind is np.ndarray:
    view = value.view()
    view.flags.writeable = False
    return view
  return value
