"""Defines the errors that a person is meant to read; nothing slow is imported here."""

import contextlib
import re
from collections.abc import Iterator

_INIT_FROM = re.compile(r"(?<![\w.])init_from=")


class SettingError(ValueError):
  """Bad input: one line that names the setting, its value and what would work.

  `experiments.run` prints it without a traceback and exits with its code.
  """

  code = 2


class StorageError(SettingError):
  """A folder or bucket that can no longer be written: one line that says what is saved.

  The same command resumes from there, so launchers may repeat it after this exit code.
  """

  code = 75  # EX_TEMPFAIL of sysexits.h


@contextlib.contextmanager
def said_of(setting: str) -> Iterator[None]:
  """Replaces `init_from` by `setting`, such as "--path", in the errors of a block; "" keeps it."""
  try:
    yield
  except SettingError as error:
    if not setting:
      raise
    raise type(error)(_INIT_FROM.sub(f"{setting}=", str(error))) from error
