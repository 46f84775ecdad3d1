"""Turns the classes of settings.py into tables, a config of defaults, and checks of a config."""

import dataclasses
import operator
from typing import Any

from ml_collections import ConfigDict

from grpo_jax.aliases import Json
from grpo_jax.config import kinds
from grpo_jax.config.kinds import PLACE, Kind
from grpo_jax.config.settings import Objective, Settings
from grpo_jax.config.table import Setting, section_of
from grpo_jax.io import storage

DATA_SETS = ("arithmetic", "gsm8k", "hidden_number", "jsonl", "reasoning_gym", "textarena")

# The class of each section of the config except `objective` and those of data sets.
CLASSES: dict[str, type] = {
  field.name: type(getattr(Settings(), field.name))
  for field in dataclasses.fields(Settings)
  if not field.metadata
}
SECTIONS = (
  section_of(Settings),
  *(section_of(cls, name) for name, cls in CLASSES.items()),
  section_of(Objective, "objective"),
)
# Every setting by its dotted name, as in --config.NAME=VALUE.
SETTINGS: dict[str, Setting] = {
  ".".join(filter(None, [section.name, name])): row
  for section in SECTIONS
  for name, row in section.settings.items()
}
KINDS: dict[str, Kind] = {name: row.kind for name, row in SETTINGS.items()}
# Settings of rows (name, folder or file, weight).
PLACES_IN_ROWS = ("data.mixture", "rewards.outcome_models", "rewards.process_models")


def defaults() -> ConfigDict:
  """Returns the config of all defaults; the sections of data sets are still empty."""
  config = ConfigDict()
  for section in SECTIONS:
    values = {name: row.default for name, row in section.settings.items()}
    config.update({section.name: values} if section.name else values)
  config.data.update({name: {} for name in DATA_SETS})
  return config


def typed(config: ConfigDict) -> Json:
  """Returns the fields of `Settings` with the values of a config that `check` has passed."""
  fields = {name: config[name] for name in SECTIONS[0].settings}
  for name, cls in CLASSES.items():
    section = config[name]
    fields[name] = cls(**{field.name: section[field.name] for field in dataclasses.fields(cls)})
  return fields


def expand(config: ConfigDict) -> None:
  """Replaces `~` by the home directory in settings that name a folder or file."""
  for name, kind in KINDS.items():
    section, _, last = name.rpartition(".")
    holder = operator.attrgetter(section)(config) if section else config
    if kind is PLACE:
      holder[last] = storage.expanded(name, holder[last])
    elif name in PLACES_IN_ROWS:
      holder[last] = tuple(_expanded_row(name, row) for row in holder[last])


def _expanded_row(name: str, row: Any) -> Any:
  """Returns a row with `~` replaced in its second entry; what is no such row stays as it is."""
  match row:
    case (first, str(place), *rest):
      return (first, storage.expanded(name, place), *rest)
  return row


def check(config: ConfigDict) -> None:
  """Refuses a config with a setting that is missing or out of range; it may have others besides.

  Of a folder only the name is checked, not whether it is there.
  """
  kinds.check(config, KINDS)
  for name, kind in KINDS.items():
    if kind is PLACE:
      storage.check(name, operator.attrgetter(name)(config))


def flat(tree: object, name: str = "") -> dict[str, Any]:
  """Returns the values of nested dicts, such as a config.json, by their dotted names."""
  if not isinstance(tree, dict):
    return {name: tree}
  values: dict[str, Any] = {}
  for key, branch in tree.items():
    values |= flat(branch, f"{name}.{key}" if name else key)
  return values
