"""Makes the commands that measure a workload here and in a peer, and reads what they print."""

import json
import subprocess
import sys
from typing import Any

from ml_collections import ConfigDict

from experiments import arguments


def of_peer(name: str, python: str, config: ConfigDict) -> list[str]:
  """Returns the command of the same workload for a peer, or ends the program if there is none."""
  b = config.benchmark
  if b.variant or config.lora.rank:
    arguments.fail(
      f"variant and lora with --vs={name}: peers run with layers, width, mlp and vocab"
    )
  if b.mixed:
    arguments.fail(f"mixed=true with --vs={name}: peers are given prompts of one length only")
  if b.tail and name == "tunix":
    arguments.fail(
      "tail=true with --vs=tunix: its sampler cannot be told where to end a row; use --vs=trl"
    )
  sampling = config.sampler
  as_theirs = (
    ("top_p", sampling.top_p, 1.0),
    ("dtype", sampling.dtype, "float32"),
    ("weights_dtype", sampling.weights_dtype, "same"),
    ("head_dim", b.head_dim, 64),
    ("sample", b.sample, True),
    ("beta", config.objective.beta, 0.04),
  )
  for setting, value, same in as_theirs:
    if value != same:
      arguments.fail(f"{setting}={value} with --vs={name}: peers run with {setting}={same} only")
  sizes = {
    "layers": b.layers,
    "width": b.width,
    "mlp": b.mlp,
    "vocab": b.vocab,
    "prompts": config.data.prompts,
    "group": config.sampler.group,
    "prompt_len": b.prompt_len,
    "completion": config.sampler.max_length,
    "steps": config.steps,
    "mu": config.learner.mu,
  }
  command = [python, f"experiments/measure/peers/{name}_step.py"]
  command += [f"--{size}={value}" for size, value in sizes.items()]
  return command + (["--tail"] if b.tail else [])


def check_peer(name: str, python: str) -> None:
  """Ends the program if the peer's Python does not start, or does not find its library."""
  use = f"use the Python of an environment that has {name}, as in --peer=peers/bin/python"
  try:
    done = subprocess.run(
      [python, "-c", f"import {name}"], capture_output=True, text=True, check=False
    )
  except OSError as error:
    arguments.fail(f"--peer={python}: does not start ({error.strerror}); {use}")
  if done.returncode:
    reason = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
    arguments.fail(f"--peer={python}: cannot import {name} ({reason}); {use}")


def own(arguments_: list[str]) -> list[str]:
  """Returns the command of this program with some arguments."""
  return [sys.executable, "-m", "experiments.measure.benchmark", *arguments_]


def last_json(command: list[str]) -> dict[str, Any]:
  """Runs a command and returns the JSON of its last line."""
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    arguments.fail(
      f"{' '.join(command)} ended with {done.returncode}: "
      f"{(done.stderr.strip() or '?').splitlines()[-1]}"
    )
  return json.loads(done.stdout.strip().splitlines()[-1])
