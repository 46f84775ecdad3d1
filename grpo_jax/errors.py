"""The one error that a person is meant to read. Nothing slow is imported here: a mistake is
answered at once.
"""

import contextlib
import re
from collections.abc import Iterator

_INIT_FROM = re.compile(r"(?<![\w.])init_from=")


class SettingError(ValueError):
  """Bad input from a person: one line that names the setting, the value and what would work.

  `experiments.run` prints it without a traceback and exits with its code, for bad input before
  anything is compiled.
  """

  code = 2


class StorageError(SettingError):
  """A folder or bucket that could not be written any more while a run went on: one line that says
  what is safe.

  The same command goes on from there, so its exit code is another one, after which launchers may
  repeat the command.
  """

  code = 75  # EX_TEMPFAIL of sysexits.h


@contextlib.contextmanager
def said_of(setting: str) -> Iterator[None]:
  """Names another setting in the errors of a block that reads weights, which speak of init_from.

  Args:
    setting: the one that names those weights here, such as "--path"; "" keeps init_from.

  Raises:
    SettingError: that of the block.
  """
  try:
    yield
  except SettingError as error:
    if not setting:
      raise
    raise type(error)(_INIT_FROM.sub(f"{setting}=", str(error))) from error
