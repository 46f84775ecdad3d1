"""The one error that a person is meant to read. Nothing is imported here, so that a mistake is answered at once."""


class SettingError(ValueError):
  """Bad input from a person: one line that names the setting, the value and what would work.

  `experiments.run` prints it without a traceback and exits with its code, for bad input before anything is compiled.
  """

  code = 2


class StorageError(SettingError):
  """A folder or bucket that could not be written any more while a run went on: one line that says what is safe.

  The same command goes on from there, so its exit code is another one, after which launchers may repeat the command.
  """

  code = 75  # EX_TEMPFAIL of sysexits.h
