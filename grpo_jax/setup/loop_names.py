"""Finds the loop of a run: a module of grpo_jax/loops, an import path or a file of a user's."""

import inspect
from types import ModuleType

from grpo_jax.errors import SettingError
from grpo_jax.setup import modules

PACKAGE = "grpo_jax.loops"
KINDS = ("online", "iterative", "offline", "reward_model", "process_reward_model")


def find(name: str) -> ModuleType:
  """Returns the module that the setting `loop` names, which has `train(experiment, workdir)`."""
  code = modules.module(PACKAGE, name, "loop")
  train = vars(code).get("train")
  try:
    inspect.signature(train).bind("experiment", "workdir")  # type: ignore[arg-type]
  except TypeError as error:
    found = "is not as train(experiment, workdir)" if callable(train) else "is not there"
    raise SettingError(
      f"loop={name!r}: its function train {found}; {PACKAGE} has {', '.join(KINDS)}"
    ) from error
  return code


def kind(name: str) -> str:
  """Returns the one of KINDS whose settings a loop reads: itself, or what its LIKE says."""
  code = vars(find(name))
  like = code.get("LIKE", name)
  if like not in KINDS:
    found = f"LIKE is {like!r} in it" if "LIKE" in code else "has no LIKE"
    raise SettingError(
      f"loop={name!r}: {found}; it says whose settings the loop reads: write LIKE = 'online', or "
      f"one of {', '.join(KINDS[1:])}"
    )
  return like
