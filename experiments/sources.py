"""Resolves flags that name weights in a folder or a run, and a folder to write to.

It serves export.py, sample.py and evaluate.py. A folder or run means what it means as `init_from`,
and nothing in it is written. jax is imported only after all flags have been checked.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from grpo_jax.config import kinds
from grpo_jax.errors import CheckpointError, GrpoError, SettingError
from grpo_jax.io import storage
from grpo_jax.run import finished, manifest, provenance

if TYPE_CHECKING:
  from grpo_jax.setup import build
  from grpo_jax.setup.experiment import Experiment

# What says how a question is asked: a run is trained with these.
PROMPT = (
  "data.template",
  "data.shots",
  "data.chat",
  "data.chat_arguments",
  "data.system",
  "sampler.stop",
)
PLAYED = tuple(
  f"environment.{name}" for name in ("name", "arguments", "turns", "turn_length", "role")
)
WEIGHTS = "a Hugging Face folder or the workdir of a run"
MOST_STEPS = 20  # of a run that a message lists


def check(flag: str, path: str, step: int | None) -> None:
  """Refuses what holds no weights, or none of that step.

  Args:
    flag: that names it, for messages.
    path: a Hugging Face folder or the workdir of a run.
    step: of a run's checkpoint; None: its export, or where there is none its last checkpoint.
  """
  check_place(flag, path)
  if not path or not storage.place(path).is_dir():
    raise SettingError(f"{flag}={path!r}: no such folder; give {WEIGHTS}")
  if provenance.is_run(path):
    check_step(flag, path, step)
    warn_of_damage(flag, path, step)
  elif step is not None:
    raise SettingError(
      f"--step={step} with {flag}={path!r}: is no run, and has no steps; give the workdir of one"
    )
  elif not (storage.place(path) / "config.json").exists():
    raise SettingError(
      f"{flag}={path!r}: has neither weights (config.json) nor checkpoints; give {WEIGHTS}"
    )


def warn_of_damage(flag: str, path: str, step: int | None) -> None:
  """Warns of files of a run that do not match their checksums; a person may have changed them.

  Checkpoints are compared when they are restored.
  """
  try:
    sums = manifest.read(path)
  except GrpoError as error:
    print(f"warning: {error}", flush=True)
    return
  read = ("config.json", "model", *(("result.json", "export") if step is None else ()))
  for name, written in sums.items():
    if name.partition("/")[0] in read and (now := manifest.changed(path, name, written)):
      print(
        f"warning: {flag}={path!r}: {name} is not as the run wrote it ({written}), but {now}",
        flush=True,
      )


def check_place(flag: str, path: str) -> None:
  """Refuses what is no path, and a bucket that is not reached."""
  kinds.check_value(flag, path)
  storage.check(flag, path)
  storage.check_reached(flag, path)


def check_step(flag: str, path: str, step: int | None) -> None:
  """Refuses a run without a checkpoint of that step; None: without weights."""
  steps = finished.steps(finished.directory(path))
  if step is not None and step not in steps:
    few = steps if len(steps) <= MOST_STEPS else [*steps[:2], "...", *steps[2 - MOST_STEPS :]]
    there = f"use {', '.join(map(str, few))}" if steps else "it has no complete checkpoint"
    raise SettingError(f"--step={step}: {flag}={path!r} has no checkpoint of that step; {there}")
  if not steps and not (storage.place(path) / "export" / "config.json").exists():
    raise CheckpointError(
      f"{flag}={path!r}: this run has no complete checkpoint; wait for its first, or use another"
    )


def check_out(out: str, paths: Sequence[str]) -> None:
  """Refuses a folder to write to that holds something, or that lies in what is read."""
  check_place("--out", out)
  place = storage.absolute(out)
  if not storage.in_bucket(place) and os.path.islink(place):
    raise SettingError(f"--out={out!r}: is a link; give the folder itself")
  above = next((parent for parent in place.parents if parent.exists()), None)
  if above is not None and not above.is_dir():
    raise SettingError(f"--out={out!r}: {above} is a file; use a folder elsewhere")
  if place.exists() and (not place.is_dir() or any(place.iterdir())):
    raise SettingError(
      f"--out={out!r}: is there, and not empty; a new or an empty folder would work"
    )
  for path in paths:
    if storage.absolute(path) in (place, *place.parents):
      raise SettingError(
        f"--out={out!r}: lies in {path}, where nothing is written; use a folder elsewhere"
      )


def trained_with(run: str, names: Sequence[str]) -> dict[str, Any]:
  """Returns some settings of a run from its config.json, with tuples for lists; {} for ""."""
  saved = provenance.saved_config(run) if run else {}
  trained = {}
  for name in names:
    section, _, last = name.partition(".")
    settings = saved.get(section)
    if isinstance(settings, dict) and settings.get(last) is not None:
      trained[name] = kinds.tuples(settings[last])
  return trained


@contextlib.contextmanager
def output() -> Iterator[TextIO]:
  """Gives standard output for a command's result, while other prints go to stderr."""
  out = sys.stdout
  with contextlib.redirect_stdout(sys.stderr):
    yield out


def step_of(path: str, step: int | None) -> int | None:
  """Returns the step of the weights that `model` loads: the flag's, or else the last of the run.

  None for a folder that is no run.
  """
  if step is not None or not provenance.is_run(path):
    return step
  from grpo_jax.setup import weights

  _, unfinished = weights.find_source(path)
  return finished.latest(finished.directory(path)) if unfinished else provenance.exported_at(path)


def model(experiment: "Experiment", path: str, step: int | None) -> "build.Model":
  """Returns the policy of a folder or run on the experiment's mesh, with its weights of a step."""
  from grpo_jax.setup import build, references

  # these were made for fresh weights, while a folder or a run has a tokenizer
  tokenizer = "" if experiment.tokenizer in ("words", "bpe") else experiment.tokenizer
  policy = build.model(build.of_another(experiment, path, tokenizer=tokenizer))
  if step is None:
    return policy
  load = functools.partial(references.reference, path, policy, "--path", step)
  return policy._replace(load=load)
