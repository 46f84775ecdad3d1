"""Defines the rows of the table of settings: fields of classes, with their kinds and meanings."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from grpo_jax.config.kinds import Kind

T = TypeVar("T")


class Setting(NamedTuple):
  """Holds one row of the table."""

  default: object
  kind: Kind  # which values it may have
  meaning: str


class Section(NamedTuple):
  """Settings of one section of the config, or those outside sections, whose name is empty."""

  name: str
  title: str
  settings: dict[str, Setting]


def setting(default: T, kind: Kind, meaning: str) -> T:
  """Returns the field of a setting, for a class of them."""
  return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning})


def section_of(cls: type, name: str = "") -> Section:
  """Returns the rows of a class of settings; its title is the docstring of the class."""
  rows = {
    field.name: Setting(field.default, field.metadata["kind"], field.metadata["meaning"])
    for field in dataclasses.fields(cls)
    if field.metadata
  }
  return Section(name, (cls.__doc__ or "").rstrip("."), rows)


def help_text(sections: Iterable[Section]) -> str:
  """Returns the settings as `--help` prints them."""
  lines = ["Settings of the config, given as --config.NAME=VALUE (docs/settings.md):"]
  for section in sections:
    lines += ["", f"{section.title}:"]
    for name, (default, kind, meaning) in section.settings.items():
      full = f"{section.name}.{name}" if section.name else name
      lines += [f"  {full}={default!r}  [{kind.brief}]", f"    {meaning}"]
  return "\n".join(lines)


def from_json(cls: type[T], section: object) -> T:
  """Returns a section of a run's config.json, with defaults for what it lacks."""
  values = section if isinstance(section, dict) else {}
  names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
  return cls(**{name: values[name] for name in names if name in values})
