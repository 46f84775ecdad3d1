"""Tests what is said of errors while a folder is read or written."""

import errno
import os

from grpo_jax.run import reasons

TENSORSTORE = "Error writing key: No such place [source locations='x.cc:1'] os_error_code='28' more"


def test_the_system_s_number_is_found_in_errors_and_in_texts():
  assert reasons.error_code(OSError(errno.ESTALE, "stale")) == errno.ESTALE
  assert reasons.error_code(ValueError(TENSORSTORE)) == errno.ENOSPC
  assert reasons.error_code(ValueError("no number")) == 0


def test_the_first_error_is_told():
  try:
    try:
      raise OSError(errno.EACCES, "not allowed")
    except OSError as error:
      raise ValueError("orbax could not save") from error
  except ValueError as error:
    assert reasons.reason(error) == "not allowed"
    assert reasons.error_code(error) == errno.EACCES
  assert reasons.reason(ValueError(TENSORSTORE)) == os.strerror(errno.ENOSPC)
  assert reasons.reason(ValueError("one\ntwo")) == "one"
  assert reasons.reason(MemoryError()) == "MemoryError"
