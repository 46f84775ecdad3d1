"""A reward for length."""

import functools

import pytest
from answered import completion, example

from grpo_jax.errors import SettingError
from grpo_jax.rewards import combine, length


def test_overlong():
  def reward(tokens):
    return length.overlong(example(), completion("", tokens=tokens), max_length=100, buffer=20)

  assert [reward(n) for n in (1, 80, 85, 90, 100, 120)] == [0, 0, -0.25, -0.5, -1, -1]
  with pytest.raises(SettingError, match="buffer=0: use 1 to max_length=100"):
    length.overlong(example(), completion(""), max_length=100, buffer=0)
  # a fault of every completion would be one of none
  with pytest.raises(SettingError, match="buffer=101"):
    combine.score(
      [("a", functools.partial(length.overlong, max_length=100, buffer=101), 1.0)],
      [example()],
      [[completion("")]],
      max_length=5,
    )
