"""The one error that a person is meant to read. Nothing is imported here, so that a mistake is answered at once."""


class SettingError(ValueError):
  """Bad input from a person: one line that names the setting, the value and what would work.

  `experiments.run` prints it without a traceback and exits with code 2, before anything is compiled.
  """
