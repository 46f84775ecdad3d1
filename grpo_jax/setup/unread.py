"""Refuses a setting that was changed and that a run of this kind does not read: it would be another
run than asked for.

A setting is looked at here where nothing but its own loop, data or objective reads it, so that
there is no sweep in which it is changed and harmless. One that is read as soon as another is not 0,
such as lora.alpha, may stay as it is.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives.base import Needs
from grpo_jax.setup import registry


class Row(NamedTuple):
  """A setting that not every run reads."""

  name: str
  default: Any
  read: bool  # whether this run reads it
  reason: str  # why not


# Settings of one kind of run with their defaults, those of experiments/defaults.py. The numbers of
# a loop are not among them: a config file may have those of several, and a comparison gives
# offline.prompts to all of its arms.
OFFLINE = {
  "data": "solutions",
  "pairs": "",
  "require": "",
  "held_out": 0,
  "steps": "",
  "continuations": 0,
  "labels": "hard",
}
ITERATIVE = {"reward_model": "", "weight": 1.0}


def check(config: ConfigDict, source: str) -> None:
  """Refuses the first setting that differs from its default and is not read.

  Args:
    config: of the run, with an objective that was checked.
    source: of the completions, "live" or a kind of offline data.
  """
  for row in rows(config, source):
    value = config
    for part in row.name.split("."):
      value = value[part]
    if not row.read and value != row.default:
      raise SettingError(f"{row.name}={value!r:.80}: {row.reason}; use {row.default!r}")


def rows(config: ConfigDict, source: str) -> list[Row]:
  """Returns the settings that not every run reads; arguments: see `check`."""
  objective, loop = f"objective.name={config.objective.name!r}", f"loop={config.loop!r}"
  needs = registry.configured(config.objective).needs
  live, own = source == "live", Needs.REFERENCE in needs and config.loop != "iterative"
  # or those of a file, in place of which an experiment has a teacher
  sampled = not live and source != "solutions"
  no_reference = f"{objective} with {loop} and these settings reads no reference from a folder"
  no_samples = f"{loop} draws no samples of a teacher" + (
    "" if live else f" with offline.data={source!r}"
  )
  return [
    Row("learner.critic_lr", 1e-5, Needs.CRITIC in needs, f"{objective} has no critic"),
    Row("ref_from", "", own, no_reference),
    Row("offline.teacher", "", sampled, no_samples),
    *(
      Row(f"offline.{name}", default, not live, f"is not of {loop}")
      for name, default in OFFLINE.items()
    ),
    *(
      Row(f"iterative.{name}", default, config.loop == "iterative", f"is not of {loop}")
      for name, default in ITERATIVE.items()
    ),
    Row("data.system", "", config.data.chat, "with data.chat=False there is no system message"),
    Row(
      "data.chat_arguments", (), config.data.chat, "with data.chat=False no chat template is asked"
    ),
  ]
