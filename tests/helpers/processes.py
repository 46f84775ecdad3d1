"""Waits for the ends of processes."""

import os
import time

from grpo_jax.run import leaving


def gone(pid: int) -> bool:
  """Returns whether a process ends within ten seconds."""
  deadline = time.monotonic() + 10
  while time.monotonic() < deadline:
    status = leaving._status(pid)
    if status is not None and status[1] in "ZX":
      return True
    try:
      os.kill(pid, 0)
    except ProcessLookupError:
      return True
    time.sleep(0.05)
  return False
