"""Finds what writes a run's numbers besides metrics.jsonl (grpo_jax/writers)."""

import functools
from collections.abc import Callable

from grpo_jax.aliases import Json
from grpo_jax.errors import SettingError
from grpo_jax.run.writer import Output
from grpo_jax.setup import modules
from grpo_jax.setup.experiment import Experiment


def make(experiment: Experiment) -> dict[str, Callable[[str, int], Output]]:
  """Returns a function of (folder, first step) for each of `log.writers`, by its name."""
  config = experiment.config_json()
  return {
    name: functools.partial(_opened, name, find(name), config) for name in experiment.log.writers
  }


def find(name: str) -> Callable[..., Output]:
  """Returns the class `Writer` that an entry of `log.writers` names."""
  setting = "log.writers"
  code = modules.module("grpo_jax.writers", name, setting)
  made = vars(code).get("Writer")
  if not isinstance(made, type):
    raise SettingError(
      f"{setting} has {name!r}: it has no class Writer; see grpo_jax/writers/__init__.py"
    )
  if missing := [each for each in ("write", "close") if not callable(getattr(made, each, None))]:
    raise SettingError(f"{setting} has {name!r}: its Writer has no method {missing[0]!r}")
  return made


def _opened(
  name: str, made: Callable[..., Output], config: Json, folder: str, first_step: int
) -> Output:
  try:
    return made(folder, config, first_step)
  except Exception as error:  # a server, a login, a user's code
    reason = " ".join(str(error).split())[:300]
    raise SettingError(
      f"log.writers has {name!r}: it does not start: {type(error).__name__}: {reason}; mend it, or "
      "leave it out: metrics.jsonl has all numbers"
    ) from error
