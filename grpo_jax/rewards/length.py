"""Rewards for length, counted in tokens."""

from grpo_jax.errors import SettingError
from grpo_jax.types import Completion, Example


def check_arguments(*, max_length: int, buffer: int) -> None:
  """Refuses invalid arguments of `overlong`."""
  for name, value in (("max_length", max_length), ("buffer", buffer)):
    if not isinstance(value, int) or isinstance(value, bool):
      raise SettingError(
        f"rewards.functions: overlong with {name}={value!r:.80}: use a whole number"
      )
  if not 0 < buffer <= max_length:
    raise SettingError(
      f"rewards.functions: overlong with buffer={buffer}: use 1 to max_length={max_length}"
    )


def overlong(example: Example, completion: Completion, *, max_length: int, buffer: int) -> float:
  """Returns DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).

  It is 0 up to max_length - buffer tokens and then falls along a line to -1 at max_length.

  Args:
    example: not used.
    completion: its tokens are counted, the stop token included.
    max_length: the length that is punished in full, usually the sampler's.
    buffer: the number of tokens over which the punishment grows.
  """
  del example
  check_arguments(max_length=max_length, buffer=buffer)
  over = len(completion.tokens) - (max_length - buffer)
  return -min(max(over / buffer, 0.0), 1.0)
