"""Writes docs/settings.md from the table of settings, the objectives and the data sets.

python -m grpo_jax.setup.settings_page > docs/settings.md
"""

import collections
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from grpo_jax import objectives
from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.setup import registry

INTRODUCTION = """
# Settings

`--config.NAME=VALUE` changes a setting of a run, as in `--config.learner.lr=1e-5`. The tables have
its default and which values it may have. `grpo_jax/config/settings.py` holds them; this page is
written from there (`python -m grpo_jax.setup.settings_page`), and a test keeps it up to date.

"DIR" is the run's `--workdir`. A folder may be in a bucket wherever a path is asked for
([buckets.md](buckets.md)).
"""
OBJECTIVES = """
## Settings of the objectives

They are in the section `objective`, as in `--config.objective.beta=0.04`. An objective has only the
settings that it reads, with its own defaults; its file in `grpo_jax/objectives/` says what they
mean. Choose it in the config file or by an argument of it, `--config=FILE:objective=NAME`, since
`--config.objective.name` alone does not bring the settings along.
"""
DATA = """
## Settings of the data sets

They are in the section of `data` that has the name of the data set, as in
`--config.data.arithmetic.max_steps=2`. Its file in `grpo_jax/data/` says what they mean.
"""


def page() -> str:
  """Returns the text of docs/settings.md."""
  parts = [INTRODUCTION.strip()]
  for section in settings.SECTIONS:
    if section.settings:
      parts += [f"## {section.title}", _section_table(section)]
  parts += [OBJECTIVES.strip(), _objectives_table(), DATA.strip(), _data_table()]
  return "\n\n".join(parts) + "\n"


def _section_table(section: settings.Section) -> str:
  """Returns the settings of a section as a table."""
  rows = [
    (
      f"`{section.name}.{name}`" if section.name else f"`{name}`",
      cell(default),
      kind.brief,
      meaning,
    )
    for name, (default, kind, meaning) in section.settings.items()
  ]
  return _table(("setting", "default", "values", "meaning"), rows)


def _objectives_table() -> str:
  """Returns the settings of all objectives, with the objectives that have each default."""
  names: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
  for name in _objective_names():
    for setting, default in _leaves(registry.objective_defaults(name)):
      names[setting].setdefault(cell(default), []).append(name)
  rows = [
    (f"`objective.{setting}`", default, ", ".join(users))
    for setting, defaults in names.items()
    for default, users in defaults.items()
  ]
  return _table(("setting", "default", "objectives"), rows)


def _data_table() -> str:
  """Returns the settings of all data sets."""
  rows = [
    (f"`data.{name}.{setting}`", cell(default))
    for name in settings.DATA_SETS
    for setting, default in _leaves(registry.data(name).settings())
  ]
  return _table(("setting", "default"), rows)


def _objective_names() -> list[str]:
  """Returns the names of the objectives that grpo_jax has."""
  names = sorted(file.stem for file in pathlib.Path(objectives.__path__[0]).glob("*.py"))
  return [name for name in names if _is_objective(name)]


def _is_objective(name: str) -> bool:
  try:
    registry.objective(name)
  except SettingError:
    return False
  return True


def _leaves(section: ConfigDict) -> list[tuple[str, Any]]:
  """Returns the names of the settings in a section and their defaults, in the file's order."""
  return [(name, section[name]) for name in section.to_dict()]


def cell(value: Any) -> str:
  """Returns a value as a cell of a table."""
  if isinstance(value, ConfigDict):
    return "a section"
  return f"`{value!r}`".replace("|", "\\|") if len(repr(value)) < 60 else "see the file"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a table in Markdown."""
  lines = [head, ["---"] * len(head), *rows]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
  print(page(), end="")
