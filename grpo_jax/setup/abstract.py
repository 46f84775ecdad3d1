"""Traces a function with shapes in place of arrays, and says in one line what is wrong with it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.setup import calls
from grpo_jax.types import Outputs, Rollouts, Scores, TrainBatch


class Sizes(dict[str, int]):
  """Sizes of a run by their letters: P, G, L, and N if there are rewards."""

  def array(self, letters: str, dtype: Any = jnp.float32) -> Any:
    """Returns the shape and dtype that stand for an array while it is traced, as for "PGL"."""
    return jax.ShapeDtypeStruct(self.shape(letters), dtype)

  def shape(self, letters: str) -> tuple[int, ...]:
    """Returns the shape of these letters."""
    return tuple(self[letter] for letter in letters)

  def expects(self, *shapes: str) -> str:
    """Returns the allowed shapes as text, such as "[P, G, L] = [32, 8, 56]"."""
    return " or ".join(
      f"[{', '.join(letters)}] = {list(self.shape(letters))}" for letters in shapes
    )

  def describe(self, value: Any) -> str:
    """Returns a returned value in a few words; an array by its dtype, its shape and its letters."""
    if value is None:
      return "None"
    if isinstance(value, tuple):
      return f"({', '.join(map(self.describe, value))})"
    if not _is_array(value):
      return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"
    candidates = ("PG", "P", "PL", "GL", "PLG", "GPL", "PGN", "L")
    letters = [names for names in candidates if set(names) <= set(self)]
    same = [names for names in letters if self.shape(names) == value.shape]
    which = f", which is [{', '.join(same[0])}]" if same else ""
    return f"{value.dtype}{list(value.shape)}{which}"

  def fits(self, value: Any, *shapes: str, kind: Any = None) -> bool:
    """Returns whether a value is an array of one of these shapes, of real numbers or of `kind`."""
    if not _is_array(value) or value.shape not in map(self.shape, shapes):
      return False
    kinds = (kind,) if kind else (jnp.floating, jnp.integer, jnp.bool_)
    return any(jnp.issubdtype(value.dtype, allowed) for allowed in kinds)


def _is_array(value: Any) -> bool:
  return hasattr(value, "shape") and hasattr(value, "dtype")


def trace(
  shown: str,
  sizes: Sizes,
  name: str,
  function: Callable,
  expects: str,
  fits: Callable[[Any], bool],
  *args: Any,
) -> Any:
  """Returns the shapes that a function returns, or refuses what does not fit.

  Args:
    shown: the setting that names the function, with its value.
    sizes: of the run.
    name: of the function.
    function: called once, with shapes in place of arrays.
    expects: the allowed results, for the message.
    fits: says whether a result is allowed.
    *args: trees of shapes; settings among them are passed as they are.
  """
  traced = [arg for arg in args if _is_tree(arg)]

  def run(trees: list[Any]) -> Any:
    rest = iter(trees)
    actual = (next(rest) if _is_tree(arg) else arg for arg in args)
    value = calls.call(shown, name, expects, function, *actual)
    if not fits(value):
      raise wrong(shown, name, function, _describe_result(value, sizes), expects)
    return value

  return jax.eval_shape(run, traced)


def _is_tree(value: Any) -> bool:
  """Returns whether an argument is a tree of shapes; the objective's settings are not."""
  return isinstance(value, jax.ShapeDtypeStruct | Rollouts | TrainBatch | Outputs | Scores)


def _describe_result(value: Any, sizes: Sizes) -> str:
  """Returns a result in a few words; of a loss, its first metric that is not a pair of scalars."""
  if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], dict):
    for name, pair in value[1].items():
      is_pair = isinstance(pair, tuple | list) and len(pair) == 2
      if not is_pair or any(jnp.shape(x) != () for x in pair):
        return f"the metric {name!r} as {sizes.describe(pair)}"
  return sizes.describe(value)


def wrong(shown: str, name: str, function: Callable, came: str, expects: str) -> SettingError:
  """Returns the error of a function that returned something that does not fit."""
  forgot = ": is a `return` missing?" if came == "None" else ""
  return SettingError(
    f"{shown}: {name} ({calls.place(function)}) returned {came}{forgot}; it should return {expects}"
  )
