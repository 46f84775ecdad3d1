"""Defines the errors that a person is meant to read; nothing slow is imported here.

A program tells them apart by their class; docs/reliability.md lists them with their exit codes.
"""

import contextlib
import re
from collections.abc import Iterator

_INIT_FROM = re.compile(r"(?<![\w.])init_from=")
_PROGRAM = re.compile(r"executable_name='(?:jit_)?(\w+)'")
_SAMPLING = (
  "sampling needs less with fewer completions at a time (sampler.slots, eval.batch) or a smaller "
  "sampler.cache_dtype"
)
_LEARNING = (
  "learning needs less with fewer prompts or tokens at a time (learner.microbatch, learner.chunk) "
  "or model.remat=block"
)
_LESS = {  # what helps a program
  "sample": _SAMPLING,
  "begin_all": _SAMPLING,
  "advance_all": _SAMPLING,
  "learn": _LEARNING,
  "movement": _LEARNING,
}


class GrpoError(ValueError):
  """Anything that a person can mend: one line that names it, its value and what would work.

  `experiments.run` prints the line without a traceback and exits with the code.
  """

  code = 2


class SettingError(GrpoError):
  """Says that a setting, a flag or an argument has a value that cannot work."""


class DataError(GrpoError):
  """Says that a data set, or a tokenizer's or model's folder, holds what cannot be used."""


class CheckpointError(GrpoError):
  """Says that a checkpoint or the folder of a run is damaged, incomplete, or does not fit."""


class TrainingError(GrpoError):
  """Says that a run cannot continue: its updates are not finite, or its hosts do not agree."""


class StorageError(GrpoError):
  """Says that a folder or bucket can no longer be written; the line says what is saved.

  The same command resumes from there, so launchers may repeat it after this exit code.
  """

  code = 75  # EX_TEMPFAIL of sysexits.h


def kind_of(error: BaseException) -> type[GrpoError] | None:
  """Returns the class of this file that an error belongs to; None if it is no GrpoError."""
  return next((kind for kind in type(error).__mro__ if kind.__module__ == __name__), None)


def no_memory(error: BaseException) -> bool:
  """Returns whether jax says that a device, or the compiler for it, had too little memory."""
  return type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)


def out_of_memory(error: BaseException) -> str:
  """Returns what to say of a device that has too little memory; "" for any other error."""
  if not no_memory(error):
    return ""
  text = str(error)
  program = _PROGRAM.search(text)
  name = program[1] if program else ""
  what = text.partition("RESOURCE_EXHAUSTED:")[2].strip().partition("\n")[0].partition(" [")[0]
  less = _LESS.get(name, "") if name else f"{_SAMPLING}; {_LEARNING}"
  return (
    f"a device has too little memory{f' for the program {name}' if name else ''} "
    f"({what[:200].rstrip('.')}); {f'{less}; ' if less else ''}more devices (mesh), adapters "
    "(lora.rank) or a smaller model help everywhere; on a GPU another program may hold some of it"
  )


@contextlib.contextmanager
def as_kind(kind: type[GrpoError]) -> Iterator[None]:
  """Raises the errors of a block as `kind`, with the same text."""
  try:
    yield
  except GrpoError as error:
    raise kind(str(error)) from error


@contextlib.contextmanager
def said_of(setting: str) -> Iterator[None]:
  """Replaces `init_from` by `setting`, such as "--path", in the errors of a block; "" keeps it."""
  try:
    yield
  except GrpoError as error:
    if not setting:
      raise
    text = str(error).replace("then --config.init_from=DIR", "then give DIR")
    raise type(error)(_INIT_FROM.sub(f"{setting}=", text)) from error
