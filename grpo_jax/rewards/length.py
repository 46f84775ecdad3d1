"""Rewards for length, counted in tokens."""

from grpo_jax.errors import SettingError
from grpo_jax.types import Completion, Example


def overlong(example: Example, completion: Completion, *, max_length: int, buffer: int) -> float:
  """Returns DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).

  It is 0 up to max_length - buffer tokens and then falls along a line to -1 at max_length.

  Args:
    example: not used.
    completion: its tokens are counted, the stop token included.
    max_length: the length that is punished in full, usually the sampler's.
    buffer: the number of tokens over which the punishment grows.

  Raises:
    SettingError: `buffer` is not in 1..max_length.
  """
  del example
  if not 0 < buffer <= max_length:
    raise SettingError(f"rewards.functions: overlong with buffer={buffer}: use 1 to max_length={max_length}")
  over = len(completion.tokens) - (max_length - buffer)
  return -min(max(over / buffer, 0.0), 1.0)
