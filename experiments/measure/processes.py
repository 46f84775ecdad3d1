"""Runs programs one at a time in a folder, measures them, and stops them by signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments import arguments
from grpo_jax.io import storage
from grpo_jax.run import lock

POLL_SECONDS = 0.5
RSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


class Ended(NamedTuple):
  """Holds the exit code, time and memory of a process."""

  code: int  # with which it ended
  seconds: float
  peak_memory_mb: float


def run(
  command: list[str], log: storage.Path, descriptor: int, asked: list[int], poll: Callable[[], None]
) -> Ended:
  """Runs a process to its end, with its output at the end of a file.

  The peak memory is the kernel's, of that process alone. It is never less than this program's own,
  which Linux hands on
  when a process starts: so a program that measures memory imports no jax.

  Args:
    command: the program and its arguments.
    log: the file for its output.
    descriptor: the file descriptor of `locked`: the folder is in use until the process has ended,
      too.
    asked: signals that came to this program (`stop_signals`). The first is handed on as SIGTERM,
      others as SIGINT.
    poll: called every POLL_SECONDS.
  """
  started, told = time.monotonic(), 0
  with open(log, "a") as output:
    child = subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,  # Ctrl-C comes to this program alone, which hands it on
      pass_fds=(descriptor,),
    )
    while True:
      pid, status, usage = os.wait4(child.pid, os.WNOHANG)
      if pid:
        break
      for _ in asked[told:]:
        os.kill(child.pid, signal.SIGTERM if not told else signal.SIGINT)
        told += 1
      poll()
      time.sleep(POLL_SECONDS)
  child.returncode = os.waitstatus_to_exitcode(status)
  peak = usage.ru_maxrss * RSS_BYTES / 1e6
  return Ended(child.returncode, round(time.monotonic() - started, 3), round(peak, 1))


@contextlib.contextmanager
def locked(workdir: storage.Path) -> Iterator[int]:
  """Locks a folder while this program, or a process that outlives it, runs; gives the descriptor.

  Ends the program where the folder cannot be written or another one holds it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    file = open(workdir / "lock", "a+")
  except OSError as error:
    arguments.fail(f"--workdir={workdir}: cannot write there: {error.strerror}")
  with file:
    if holder := lock.take(file):
      arguments.fail(
        f"--workdir={workdir}: another comparison, or a run that it left, is there; wait for "
        f"{holder}"
      )
    yield file.fileno()


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
  """Gathers the SIGINT and SIGTERM that come, in a list that grows."""
  asked: list[int] = []

  def handler(number: int, _) -> None:
    os.write(2, b"\nthe run saves and ends; Ctrl-C again ends it at once\n" if not asked else b"\n")
    asked.append(number)

  before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield asked
  finally:
    for number, old in before.items():
      signal.signal(number, old)
