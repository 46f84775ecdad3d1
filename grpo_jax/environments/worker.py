"""Answers turns in a process of its own; its argument is JSON: the environment and its limits.

The file of the environment is read here before a child is forked, so that a child that an episode
has ended is replaced at once.
"""

import functools
import importlib
import importlib.util
import json
import pathlib
import sys

from grpo_jax.aliases import Json
from grpo_jax.environments import base
from grpo_jax.sandbox import worker

MEMORY = 8 * 1024**3  # bytes of address space; jax, which types.py imports, takes three


def describe(name: str, arguments: Json, seconds: float) -> str:
  """Returns the argument of this program.

  Args:
    name: of the environment: a module of grpo_jax.environments, an import path or a file.
    arguments: its keyword arguments.
    seconds: that it may take for a turn; 0: any time.
  """
  return json.dumps({"name": name, "arguments": arguments, "seconds": seconds, "path": sys.path})


def load(name: str) -> dict[str, object]:
  """Returns the names of an environment's module, as setup/modules.py finds it."""
  if not name.endswith(".py"):
    return vars(importlib.import_module(name if "." in name else f"grpo_jax.environments.{name}"))
  spec = importlib.util.spec_from_file_location(pathlib.Path(name).stem, name)
  assert spec and spec.loader  # the run has read it
  code = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(code)
  return vars(code)


def main(described: str) -> None:
  """Answers the requests of the standard input."""
  about = json.loads(described)
  sys.path[:] = about["path"]
  functions = base.functions(load(about["name"]), about["arguments"])
  seconds = about["seconds"] or 10.0**8
  worker.serve(
    functools.partial(base.respond, functions), MEMORY, seconds, patience=0.0, files=True
  )


if __name__ == "__main__":
  main(sys.argv[1])
