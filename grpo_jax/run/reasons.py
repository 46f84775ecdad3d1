"""Says in a few words why a folder could not be read or written."""

import errno
import os
import re

from grpo_jax.io import storage

# Of a disk that is there but does not answer, such as one of a network.
FLEETING = {
  errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EACCES,
  errno.ECONNRESET, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH,
}  # fmt: skip
NETWORK = ("aiohttp", "gcsfs", "google", "requests")  # packages whose errors are those of a bucket


def error_code(error: BaseException) -> int:
  """Returns the system's number of an error, also of one from tensorstore; 0: it has none."""
  error = _first(error)
  code = re.search(r"os_error_code='(\d+)'", str(error))
  return int(code[1]) if code else getattr(error, "errno", None) or 0


def _first(error: BaseException) -> BaseException:
  """Returns the error that an error follows from."""
  while error.__cause__ is not None:
    error = error.__cause__
  return error


def reason(error: BaseException) -> str:
  """Returns the cause of an error in a few words: the system's message, or the first error's."""
  error = _first(error)
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  if code := error_code(error):
    return os.strerror(code)
  # tensorstore adds its request and places in its source, in brackets
  text = re.sub(r" \[(tensorstore_spec|source locations)=.*", "", str(error), flags=re.DOTALL)
  lines = text.strip().splitlines()
  text = lines[0] if lines else type(error).__name__
  return text if len(text) <= 200 else f"{text[:80]} ... {text[-115:]}"


def may_answer_later(path: storage.Path, error: Exception) -> bool:
  """Returns whether a disk or bucket could not be read at this moment, and nothing is damaged."""
  if error_code(error) in FLEETING or isinstance(error, (TimeoutError, ConnectionError)):
    return True
  if not storage.in_bucket(path) or isinstance(error, FileNotFoundError):
    return False
  of_network = type(error).__module__.split(".")[0] in NETWORK
  return of_network or any(word in str(error) for word in ("UNAVAILABLE", "DEADLINE_EXCEEDED"))
