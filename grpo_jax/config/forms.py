"""Defines the kinds of single settings that are tuples, tables or texts of a certain form."""

from collections.abc import Sequence
from typing import Any, TypeGuard

from grpo_jax.config.kinds import Choice, Form, Number, Whole, is_text

MESH_AXES = ("replica", "fsdp", "group", "tensor")
MESH_RULES = (
  ("prompt", ("replica", "fsdp")),
  ("sample", ("group",)),
  ("embed", ("fsdp", "group")),
  ("heads", ("tensor",)),
  ("kv_heads", ("tensor",)),
  ("mlp", ("tensor",)),
  ("vocab", ("tensor",)),
)
LOGICAL_AXES = tuple(name for name, _ in MESH_RULES)
LORA_MODULES = ("q", "k", "v", "o", "gate", "up", "down")  # as in models/lora.py, which imports jax
STOP_BYTES = 256  # each is a row over the vocabulary in the sampler's table
CHAT_NAMES = ("messages", "add_generation_prompt")  # that every chat template gets anyway


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
  """Returns whether a value is a tuple or a list."""
  return isinstance(value, tuple | list)


def is_pairs(value: object) -> TypeGuard[Sequence[Sequence[Any]]]:
  """Returns whether a value is a tuple of pairs."""
  return is_sequence(value) and all(is_sequence(row) and len(row) == 2 for row in value)


def is_stop(value: object) -> bool:
  """Returns whether a value is a tuple of texts that are not empty, and not long all together."""
  if not is_sequence(value) or not all(is_text(text) and text for text in value):
    return False
  return sum(len(text.encode()) for text in value) <= STOP_BYTES


def is_template(value: object) -> bool:
  """Returns whether a value is text with one {question}; of {{question}}, braces would be left."""
  return is_text(value) and value.count("{question}") == 1 and "{{question}}" not in value


def is_modules(value: object) -> bool:
  """Returns whether a value is a tuple of some of the modules that adapters can have, each once."""
  return (
    is_sequence(value)
    and 0 < len(value) == len(set(map(str, value)))
    and all(name in LORA_MODULES for name in value)
  )


def is_rules(value: object) -> bool:
  """Returns whether a value is a table from logical axes to mesh axes, each name once."""
  if not is_pairs(value) or not all(is_text(name) and is_sequence(axes) for name, axes in value):
    return False
  if not all(name in LOGICAL_AXES for name, _ in value):  # it would shard nothing
    return False
  return len({name for name, _ in value}) == len(value) and all(
    axis in MESH_AXES and axes.count(axis) == 1 for _, axes in value for axis in axes
  )


def is_chat_arguments(value: object) -> bool:
  """Returns whether a value is (name, plain value) pairs that a chat template can be given."""
  if not is_pairs(value):
    return False
  names = [name for name, _ in value]
  return (
    all(is_text(name) and name.isidentifier() and name not in CHAT_NAMES for name in names)
    and len(set(names)) == len(names)
    and all(isinstance(x, bool | int | float | str | None) for _, x in value)
  )


ROWS = Form(
  "a tuple of tuples, with a comma after a single one, as in ((...),)",
  is_sequence,
  "tuple of tuples",
)
TEMPLATE = Form(
  "text with {question} in it, once and in single braces", is_template, "text with {question}"
)
CHAT_ARGUMENTS = Form(
  f"(('name', value), ...), each name once and none of {', '.join(CHAT_NAMES)}, each value True, "
  "False, None, a number or text",
  is_chat_arguments,
  "tuple of (name, value)",
)
STOP = Form(
  f"a tuple of texts that are not empty, at most {STOP_BYTES} bytes in all, as in ('</s>',)",
  is_stop,
  "tuple of texts",
)
RULES = Form(
  f"(('name', ('axis', ...)), ...), each name once and one of {', '.join(LOGICAL_AXES)}, with the "
  f"axes {', '.join(MESH_AXES)}",
  is_rules,
  "tuple of (name, axes)",
)
MODULES = Form(
  f"a tuple of some of {', '.join(LORA_MODULES)}, each once", is_modules, "tuple of names"
)

# Kinds and defaults of several settings, or too long for a line.
AXIS = Whole(1, also=(-1,))
SHARE = Number(0, 1)
DTYPE = Choice(("float32", "bfloat16"))
# Outside of it sampling is greedy or uniform, and float32 loses the log-probs.
TEMPERATURE = Number(1e-3, 1e3)
REWARDS = (("correct", "math.answer_correct", 1.0),)
