"""How the process of a run ends: not with code 0 before its last step, and together with the
processes that it started.

    with until_done():
      ...                     # the whole run; what leaves the block by an exception is not done

Until the block has ended, `os._exit(0)` in this process, by whatever library and in whatever
thread, says so and ends it with code 1. When the block ends, processes that this one started and
that still run are ended, on Linux: they would keep files and pipes of the run open. Forked children
also end where this process is killed. What cannot be seen here is a call of exit(0) or _exit(0)
from C.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from grpo_jax.sandbox import worker

PATIENCE = 2.0  # seconds that processes have to end by themselves after SIGTERM
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@contextlib.contextmanager
def until_done() -> Iterator[None]:
  """Ends this process as the module says; to be used once, in the main thread."""
  before = os._exit
  os._exit = functools.partial(_leave, os.getpid(), before)
  if sys.platform == "linux":
    _end_forks_with(os.getpid())
  try:
    yield
  finally:
    if ended := end_children():
      with contextlib.suppress(OSError, ValueError):
        print(
          "warning: ended what this run had started and what still ran at its end: "
          f"{', '.join(ended)}",
          flush=True,
        )
  os._exit = before


def _leave(process: int, before: Callable[[int], None], code: int) -> None:
  """Takes the place of os._exit in a run that is not at its end."""
  if code == 0 and os.getpid() == process:
    with contextlib.suppress(OSError):
      os.write(
        2,
        b"error: os._exit(0) was called before the run was at its end, by its user's code or a library\n",
      )
    code = 1
  before(code)


def _end_forks_with(process: int) -> None:
  """Has children that the main thread of this process forks from now on be killed where it ends,
  however it ends.
  """
  libc, forked_by_main = ctypes.CDLL(None), [False]

  def note() -> None:
    forked_by_main[0] = threading.current_thread() is threading.main_thread()

  def follow() -> None:
    # The signal comes when the thread that forked ends: a pool's thread may end before its children
    # should.
    if forked_by_main[0] and os.getppid() == process:
      libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)

  os.register_at_fork(before=note, after_in_child=follow)


def end_children() -> list[str]:
  """Ends the processes that this one started, and those that these started.

  Those of sandbox/worker.py are left out: they end by themselves.

  Returns:
    Their names, "process 12 (python)". On other systems than Linux none is found.
  """
  found = _descendants(os.getpid())
  for number in (signal.SIGTERM, signal.SIGKILL):
    for pid in found:
      with contextlib.suppress(OSError):
        os.kill(pid, number)
    deadline = time.monotonic() + PATIENCE
    while any(map(_runs, found)) and time.monotonic() < deadline:
      time.sleep(0.02)
  return [f"process {pid} ({name})" for pid, name in found.items()]


def _descendants(process: int) -> dict[int, str]:
  """Returns the names of the running processes below a process, by their ids, without those of
  sandbox/worker.py.
  """
  below: dict[int, list[tuple[int, str]]] = {}
  for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    if read := _status(int(stat.parent.name)):
      name, state, parent = read
      if state not in "ZX":
        below.setdefault(parent, []).append((int(stat.parent.name), name))
  found, waiting = {}, [process]
  while waiting:
    for pid, name in below.get(waiting.pop(), []):
      if pid not in worker.started:
        found[pid] = name
        waiting.append(pid)
  return found


def _runs(pid: int) -> bool:
  """Returns whether a process has not ended; one that its parent has not asked for yet has."""
  read = _status(pid)
  return read is not None and read[1] not in "ZX"


def _status(pid: int) -> tuple[str, str, int] | None:
  """Returns a process's name, its state and its parent; None where there is no such process."""
  try:
    text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
  except OSError:
    return None
  name, _, rest = text.partition("(")[2].rpartition(")")
  state, parent = rest.split()[:2]
  return name, state, int(parent)
