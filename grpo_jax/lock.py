"""A lock on a file that the system lets go of when its holder ends, however it ends. jax is not imported here."""

import fcntl
import os
import socket
from typing import TextIO


def take(file: TextIO) -> str:
  """Locks an open file and writes this process into it.

  Args:
    file: open to read and append; the lock lasts until it is closed.

  Returns:
    Who holds it already ("process 12 on HOST"), or "" where this process holds it now.
  """
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    return file.readline(200).strip() or "another process"
  file.truncate(0)
  file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
  file.flush()
  return ""
