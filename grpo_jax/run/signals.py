"""Lets SIGTERM and Ctrl-C end a run between two steps, on every host at the same one."""

import contextlib
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from grpo_jax.sandbox import deadline

_received: list[int] = []  # signals during the last run of this process
_calls = itertools.count(1)  # of `stopping` by this process, in all its runs


def asked() -> str:
  """Returns the name of the signal that came during the last run of this process, or ""."""
  return signal.Signals(_received[0]).name if _received else ""


def forget() -> None:
  """Forgets the signals of an earlier run of this process."""
  _received.clear()


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], str]]:
  """Lets SIGTERM and SIGINT end a run between two steps, on every host at the same one.

  with stop_signals() as stopping:
    for step in ...:
      ...
      if signal_name := stopping(): save, say `how_to_resume()`, leave

  It returns the name of the signal, or "". Every process calls it once in every step, and equally
  often: one with a call more would stop alone.
  The first signal is a request, and stops rewards (`deadline.Stopped`); a second SIGINT raises
  KeyboardInterrupt at once. On several hosts jax's preemption service handles SIGTERM and agrees on
  a call that none has made; a SIGINT is handed to it, and no reward is stopped. Main thread only.
  """
  several, joined = jax.process_count() > 1, jax.distributed.is_initialized()
  received, process = _received, os.getpid()
  forget()

  def handler(number: int, _: FrameType | None) -> None:
    if os.getpid() != process:  # a child that a reward forked ends as it would without this handler
      signal.signal(number, signal.SIG_DFL)
      os.kill(os.getpid(), number)
      return
    if received and number == signal.SIGINT:
      raise KeyboardInterrupt
    received.append(number)
    name = signal.Signals(number).name
    if len(received) == 1:
      message = f"\n{name}: what is done is saved first; Ctrl-C again leaves at once\n"
      with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, message.encode())
      if several:
        os.kill(os.getpid(), signal.SIGTERM)
    if not several:
      deadline.stop(name)

  def stopping() -> str:
    # Hosts agree on the largest number that any of them has asked about, plus 1, which jax tells of
    # at that number alone. A resumed run that asked by steps would be past the first one already.
    reached = joined and multihost_utils.reached_preemption_sync_point(next(_calls))
    if reached and not received and not several:
      received.append(signal.SIGTERM)  # it came before this function took it over from jax
    if several and not reached:
      return ""
    return signal.Signals(received[0]).name if received else "SIGTERM" if several else ""

  numbers = (signal.SIGINT,) if several else (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield stopping
  finally:
    deadline.forget()
    for number, old in before.items():
      signal.signal(number, old)


def how_to_resume() -> str:
  """Returns a line with the command that this process was started by; launch/ looks for it."""
  return f"to go on, run the same command again: {shlex.join(sys.orig_argv)}"
