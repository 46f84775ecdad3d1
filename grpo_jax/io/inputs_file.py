"""Names what is in the file inputs.json of a run, and what differs between two of them.

`distributed/inputs.py` writes it. This file imports no jax, so that a page of runs need not either.
"""

from collections.abc import Mapping

NAME = "inputs.json"  # in a run's folder
CODE = "code of "  # how the names of files of code begin


def until(step: int | str) -> str:
  """Returns the name of the file with the inputs of the steps up to `step`, or a pattern of all."""
  return f"inputs-until-{step}.json"


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
  """Returns the sorted names of the inputs that differ.

  A file of code that only one side has is not reported: the file that imports it differs, too.
  """
  names = [
    name
    for name in old.keys() | new.keys()
    if not name.startswith(CODE) or (name in old and name in new)
  ]
  return sorted(name for name in names if old.get(name) != new.get(name))
