"""Writes docs/settings.md from the table of settings, the objectives and the data sets.

python -m grpo_jax.setup.settings_page > docs/settings.md
"""

import collections
import pathlib
import re
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

import grpo_jax
from grpo_jax import objectives
from grpo_jax.config import comments, sections
from grpo_jax.config.table import Section
from grpo_jax.errors import GrpoError
from grpo_jax.setup import registry

INTRODUCTION = """
# Settings

`--config.NAME=VALUE` changes a setting of a run, as in `--config.learner.lr=1e-5`. The tables have
its default, which values it may have, and files of `grpo_jax/` that read it.
`grpo_jax/config/settings.py` holds the settings; this page is written from there (`python -m
grpo_jax.setup.settings_page`), and a test keeps it up to date.

"DIR" is the run's `--workdir`. A folder may be in a bucket wherever a path is asked for
([buckets.md](buckets.md)).
"""
OBJECTIVES = """
## Settings of the objectives

They are in the section `objective`, as in `--config.objective.beta=0.04`. An objective has only the
settings that it reads, with its own defaults; they are defined in `grpo_jax/objectives/`. Choose it
in the config file or by an argument of it, `--config=FILE:objective=NAME`, since
`--config.objective.name` alone does not bring the settings along.
"""
DATA = """
## Settings of the data sets

They are in the section of `data` that has the name of the data set, as in
`--config.data.arithmetic.max_steps=2`, and are defined in `grpo_jax/data/`.
"""
# Folders and files that tell less of what a setting does: they check, show or plan a run.
TELL_LESS = (
  "config/",
  "setup/checks",
  "setup/tracing",
  "setup/unread",
  "setup/room",
  "plan/",
  "reports/",
)
MOST_READERS = 3  # files in the column of a setting


def page() -> str:
  """Returns the text of docs/settings.md."""
  parts, sources = [INTRODUCTION.strip()], read_sources()
  for section in sections.SECTIONS:
    if section.settings:
      parts += [f"## {section.title}", _section_table(section, sources)]
  parts += [OBJECTIVES.strip(), _objectives_table(), DATA.strip(), _data_table()]
  return "\n\n".join(parts) + "\n"


def _section_table(section: Section, sources: Mapping[str, str]) -> str:
  """Returns the settings of a section as a table."""
  rows = [
    (
      f"`{section.name}.{name}`" if section.name else f"`{name}`",
      cell(default),
      kind.brief,
      meaning,
      ", ".join(readers(section.name, name, sources)),
    )
    for name, (default, kind, meaning) in section.settings.items()
  ]
  return _table(("setting", "default", "values", "meaning", "read by"), rows)


def read_sources() -> dict[str, str]:
  """Returns the text of each file of grpo_jax/, by its path there."""
  root = pathlib.Path(grpo_jax.__path__[0])
  files = sorted(root.rglob("*.py"))
  return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def readers(section: str, name: str, sources: Mapping[str, str]) -> list[str]:
  """Returns the files that read a setting, the most telling first, at most `MOST_READERS`.

  A read is `experiment.SECTION.NAME`; or `cfg.NAME`, or `x.NAME` with any letter, in a file that
  takes the section, as `experiment.SECTION` or `settings.SECTION`.
  """
  takes = re.compile(rf"experiment\.{section}\b|settings\.{section.title()}\b")
  whole = rf"\bexperiment\.{section}\.{name}\b" if section else rf"\bexperiment\.{name}\b"
  some = rf"{whole}|\b(?:cfg|log|[a-z])\.{name}\b" if section else whole
  counts = {
    file: len(re.findall(some if takes.search(text) else whole, text))
    for file, text in sources.items()
  }
  found = [file for file, count in counts.items() if count]
  if not found:  # by its name in a table, or by that of a field
    named = re.compile(rf"\"{name}\"|^ +{name}: ", re.MULTILINE)
    found = [file for file, text in sources.items() if named.search(text) and "config/" not in file]
    found = [file for file in found if takes.search(sources[file])] or found
  return sorted(found, key=lambda f: (f.startswith(TELL_LESS), -counts[f], f))[:MOST_READERS]


def _objectives_table() -> str:
  """Returns the settings of all objectives, with the objectives that have each default."""
  names: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
  for name in _objective_names():
    for setting, default in _leaves(registry.objective_defaults(name)):
      names[setting].setdefault(cell(default), []).append(name)
  meanings = comments.meanings("objectives")
  rows = [
    (f"`objective.{setting}`", default, ", ".join(users), _meaning(meanings, users, setting))
    for setting, defaults in names.items()
    for default, users in defaults.items()
  ]
  return _table(("setting", "default", "objectives", "meaning"), rows)


def _data_table() -> str:
  """Returns the settings of all data sets."""
  meanings = comments.meanings("data")
  rows = [
    (f"`data.{name}.{setting}`", cell(default), _text(meanings[name].get(setting, "")))
    for name in sections.DATA_SETS
    for setting, default in _leaves(registry.data(name).settings())
  ]
  return _table(("setting", "default", "meaning"), rows)


def _meaning(meanings: dict[str, dict[str, str]], users: Sequence[str], setting: str) -> str:
  """Returns the comment on a setting that these objectives read: where they share it, or theirs."""
  shared = [file for file in meanings if file not in _objective_names()]
  files = [*users, *shared, *meanings] if len(users) == 1 else [*shared, *users]
  return next((_text(meanings[file][setting]) for file in files if setting in meanings[file]), "")


def _objective_names() -> list[str]:
  """Returns the names of the objectives that grpo_jax has."""
  names = sorted(file.stem for file in pathlib.Path(objectives.__path__[0]).glob("*.py"))
  return [name for name in names if _is_objective(name)]


def _is_objective(name: str) -> bool:
  try:
    registry.objective(name)
  except GrpoError:
    return False
  return True


def _leaves(section: ConfigDict) -> list[tuple[str, object]]:
  """Returns the names of the settings in a section and their defaults, in the file's order."""
  return [(name, section[name]) for name in section.to_dict()]


def _text(meaning: str) -> str:
  """Returns a comment as a cell of a table."""
  return meaning.replace("|", "\\|")


def cell(value: object) -> str:
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
