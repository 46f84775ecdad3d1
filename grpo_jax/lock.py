"""A lock on a file that the system lets go of when its holder ends, however it ends. jax is not imported here."""

import errno
import fcntl
import os
import socket
import warnings
from typing import TextIO


def take(file: TextIO) -> str:
  """Locks an open file and writes this process into it.

  Args:
    file: open to read and append; the lock lasts until it is closed.

  Returns:
    Who holds it already ("process 12 on HOST"), or "" where this process holds it now.
  """
  os.register_at_fork(after_in_child=file.close)  # a child that outlives this process must not go on holding it
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    return file.readline(200).strip() or "another process"
  except OSError as error:
    if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
      raise
    said = f"{file.name}: this file system has no locks, so a second run in the folder would not be noticed"
    warnings.warn(said, stacklevel=2)
  file.truncate(0)
  file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
  file.flush()
  return ""
