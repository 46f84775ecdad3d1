"""Silences what orbax and tensorstore print about errors that are raised anyway."""

import logging
import os
import re
import sys
import warnings


def orbax() -> None:
  """Silences all but the warnings of orbax and tensorstore."""
  logging.getLogger("absl").addFilter(_worth_printing)
  logging.getLogger("asyncio").addFilter(_not_left_behind)
  # writes not begun by then
  warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
  sys.unraisablehook = _unraisable


def _worth_printing(record: logging.LogRecord) -> bool:
  return record.levelno == logging.WARNING or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_left_behind(record: logging.LogRecord) -> bool:
  """Returns whether a message is not about the other writes of a save that has failed."""
  return not re.search(
    "exception was never retrieved|was destroyed but it is pending", record.getMessage()
  )


def _unraisable(event: "sys.UnraisableHookArgs") -> None:
  """Prints an exception unless it follows from the first write or read that failed."""
  if not re.match(
    "Event loop is closed|Encountered error while reading array index", str(event.exc_value)
  ):
    sys.__unraisablehook__(event)
