"""Reads what settings of objectives and data sets mean, from the comments in their files."""

import pathlib
import re

import grpo_jax

# The meaning of a setting is a comment behind it or on the lines before it.
ASSIGNED = re.compile(r"^((?: *#.*\n)*) *c\.(\w+) = [^#\n]*(?:# (.*))?$", re.MULTILINE)


def meanings(package: str) -> dict[str, dict[str, str]]:
  """Returns the comments on the settings in each file of a package of grpo_jax.

  Args:
    package: "objectives" or "data".

  Returns:
    file -> {setting: its meaning}.
  """
  found: dict[str, dict[str, str]] = {}
  for file in sorted((pathlib.Path(grpo_jax.__path__[0]) / package).glob("*.py")):
    comments = found[file.stem] = {}
    for before, setting, behind in ASSIGNED.findall(file.read_text(encoding="utf-8")):
      lines = [line.strip().removeprefix("#").strip() for line in before.splitlines()]
      if text := behind or " ".join(lines):
        comments[setting] = text
  return found
