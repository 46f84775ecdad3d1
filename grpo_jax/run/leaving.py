"""Ends the process of a run: never with code 0 too early, and together with its child processes.

    with until_done():
      ...                     # the whole run; an exception means that it is not done

Until the block has ended, `os._exit(0)` in this process, by any library and in any thread, prints
an error and exits with code 1. When the block ends, processes that this one started and that still
run are ended, on Linux: they would keep files and pipes of the run open. Forked children also end
if this process is killed. Calls of exit(0) or _exit(0) from C are not noticed.
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
from typing import Never

from grpo_jax.sandbox import serving, worker

PATIENCE = 2.0  # seconds that processes have to end after SIGTERM


@contextlib.contextmanager
def until_done() -> Iterator[None]:
  """Guards the end of this process as the module says; used once, in the main thread."""
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


def _leave(process: int, exit_now: Callable[[int], Never], code: int) -> Never:
  """Replaces os._exit in a run that is not at its end."""
  if code == 0 and os.getpid() == process:
    with contextlib.suppress(OSError):
      os.write(
        2,
        b"error: os._exit(0) was called before the run was at its end, by its user's code or a "
        b"library\n",
      )
    code = 1
  exit_now(code)


def _end_forks_with(process: int) -> None:
  """Makes children that the main thread forks from now on die with this process."""
  libc, forked_by_main = ctypes.CDLL(None), [False]

  def note() -> None:
    forked_by_main[0] = threading.current_thread() is threading.main_thread()

  def follow() -> None:
    # The signal comes when the forking thread ends, and a pool's thread may end too early.
    if forked_by_main[0] and os.getppid() == process:
      libc.prctl(serving.SET_DEATH_SIGNAL, signal.SIGKILL)

  os.register_at_fork(before=note, after_in_child=follow)


def end_children() -> list[str]:
  """Ends the processes below this one, except those of sandbox/worker.py, which end by themselves.

  Returns:
    Their names, such as "process 12 (python)"; nothing on other systems than Linux.
  """
  running = descendants(os.getpid())
  for number in (signal.SIGTERM, signal.SIGKILL):
    for pid in running:
      with contextlib.suppress(OSError):
        os.kill(pid, number)
    deadline = time.monotonic() + PATIENCE
    while any(map(_runs, running)) and time.monotonic() < deadline:
      time.sleep(0.02)
  return [f"process {pid} ({name})" for pid, name in running.items()]


def descendants(process: int) -> dict[int, str]:
  """Returns the names of the processes that run below a process, by their ids."""
  below: dict[int, list[tuple[int, str]]] = {}
  for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    if read := _status(int(stat.parent.name)):
      name, state, parent = read
      if state not in "ZX":
        below.setdefault(parent, []).append((int(stat.parent.name), name))
  descendants, waiting = {}, [process]
  while waiting:
    for pid, name in below.get(waiting.pop(), []):
      if pid not in worker.started:
        descendants[pid] = name
        waiting.append(pid)
  return descendants


def _runs(pid: int) -> bool:
  """Returns whether a process still runs; a zombie does not."""
  read = _status(pid)
  return read is not None and read[1] not in "ZX"


def _status(pid: int) -> tuple[str, str, int] | None:
  """Returns the name, state and parent of a process; None if there is no such process."""
  try:
    text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
  except OSError:
    return None
  name, _, rest = text.partition("(")[2].rpartition(")")
  state, parent = rest.split()[:2]
  return name, state, int(parent)
