"""Keeps what orbax and tensorstore print beside an error that is raised anyway off the console."""

import logging
import os
import re
import sys
import warnings
from typing import Any


def orbax() -> None:
  """Leaves only warnings of what orbax and tensorstore print: their errors are raised, as one line
  each.
  """
  logging.getLogger("absl").addFilter(_worth_printing)
  logging.getLogger("asyncio").addFilter(_not_left_behind)
  # writes not begun by then
  warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
  sys.unraisablehook = _unraisable


def _worth_printing(record: logging.LogRecord) -> bool:
  return record.levelno == logging.WARNING or f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_left_behind(record: logging.LogRecord) -> bool:
  """False for the writes of a failed save (tasks, futures, gathered futures) beside the one that
  failed it.
  """
  return not re.search(
    "exception was never retrieved|was destroyed but it is pending", record.getMessage()
  )


def _unraisable(event: Any) -> None:
  """Silent on what orbax's and tensorstore's threads report beside the first write or read that
  failed.
  """
  if not re.match(
    "Event loop is closed|Encountered error while reading array index", str(event.exc_value)
  ):
    sys.__unraisablehook__(event)
