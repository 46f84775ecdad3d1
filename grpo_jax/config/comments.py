"""Reads what settings of objectives and data sets mean, from the comments in their files."""

import pathlib
import re

import grpo_jax

# The meaning of a setting is a comment behind it or on the lines before it.
DOCSTRING = re.compile(r'"""[\s\S]*?"""')
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
    text = DOCSTRING.sub("", file.read_text(encoding="utf-8"))
    for before, setting, behind in ASSIGNED.findall(text):
      lines = [line.strip().removeprefix("#").strip() for line in before.splitlines()]
      if meaning := behind or " ".join(lines):
        comments[setting] = meaning
  return found
