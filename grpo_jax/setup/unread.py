"""Refuses a setting that was changed although a run of this kind does not read it.

A setting is listed here if only its own loop, data or objective reads it, so that no sweep would
change it in vain. One that is read as soon as another is not 0, such as lora.alpha, is not listed.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.objectives.base import Needs
from grpo_jax.setup import registry


class Row(NamedTuple):
  """A setting that not every run reads."""

  name: str
  read: bool  # whether this run reads it
  reason: str  # why not

  @property
  def default(self) -> object:
    """Returns the default of the setting."""
    return settings.SETTINGS[self.name].default


# Settings of one kind of run. The numbers of a loop are not among them: a config file may have
# those of several loops, and a comparison gives offline.prompts to all of its arms.
OFFLINE = ("data", "pairs", "require", "held_out", "steps", "continuations", "labels")
ITERATIVE = ("reward_model", "weight")


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
  live = source == "live"
  reads_folder = Needs.REFERENCE in needs and config.loop != "iterative"
  # true for samples of a file as well, since an experiment has a teacher besides
  sampled = not live and source != "solutions"
  no_reference = f"{objective} with {loop} and these settings reads no reference from a folder"
  no_samples = f"{loop} draws no samples of a teacher" + (
    "" if live else f" with offline.data={source!r}"
  )
  return [
    Row("learner.critic_lr", Needs.CRITIC in needs, f"{objective} has no critic"),
    Row("ref_from", reads_folder, no_reference),
    Row("offline.teacher", sampled, no_samples),
    *(Row(f"offline.{name}", not live, f"is not of {loop}") for name in OFFLINE),
    *(
      Row(f"iterative.{name}", config.loop == "iterative", f"is not of {loop}")
      for name in ITERATIVE
    ),
    Row("data.system", config.data.chat, "with data.chat=False there is no system message"),
    Row("data.chat_arguments", config.data.chat, "with data.chat=False no chat template is asked"),
  ]
