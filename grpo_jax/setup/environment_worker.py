"""Answers turns in a process of its own; its argument is JSON: the environment and its limits.

The file of the environment is read here before a child is forked, so that a child that an episode
has ended is replaced at once.
"""

import functools
import json
import sys

import jax

from grpo_jax.aliases import Json
from grpo_jax.config import kinds
from grpo_jax.environments import base
from grpo_jax.sandbox import serving
from grpo_jax.setup import modules

MEMORY = 8 * 1024**3  # bytes of address space; jax, which types.py imports, takes three


def describe(name: str, arguments: Json, seconds: float) -> str:
  """Returns the argument of this program.

  Args:
    name: of the environment: a module of grpo_jax.environments, an import path or a file.
    arguments: its keyword arguments.
    seconds: that it may take for a turn; 0: any time.
  """
  name = modules.absolute(name)
  return json.dumps({"name": name, "arguments": arguments, "seconds": seconds, "path": sys.path})


def main(described: str) -> None:
  """Answers the requests of the standard input."""
  about = json.loads(described)
  sys.path[:] = about["path"]
  jax.config.update("jax_platforms", "cpu")  # the accelerator is the run's

  def load() -> serving.Answer:
    code = modules.module("grpo_jax.environments", about["name"], "environment.name")
    arguments = {name: kinds.tuples(value) for name, value in about["arguments"].items()}
    return functools.partial(base.respond, base.functions(vars(code), arguments))

  answer = serving.loaded(load, "environment.workers")
  serving.serve(answer, MEMORY, 0.0, patience=about["seconds"] or 10.0**8, files=True)


if __name__ == "__main__":
  main(sys.argv[1])
