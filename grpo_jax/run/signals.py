"""SIGTERM and Ctrl-C end a run between two steps, on every host at the same one."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

from grpo_jax.sandbox import deadline


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[int], str]]:
  """Lets SIGTERM and SIGINT end a run between two steps, on every host at the same one.

  with stop_signals() as stopping:
    for step in ...:
      ...
      if signal_name := stopping(step): save, say `how_to_go_on()`, leave

  `stopping(step)` is called by every process, once in every step, and returns the name of the
  signal, or "". The first signal only asks, and stops rewards (`guard.Stopped`); a second SIGINT
  raises KeyboardInterrupt at once. On several hosts jax's preemption service has SIGTERM and agrees
  on a step that none has passed; a SIGINT is handed to it, and no reward is stopped. Main thread
  only.
  """
  several = jax.process_count() > 1
  asked, process = [], os.getpid()

  def handler(number, _):
    if os.getpid() != process:  # a child that a reward forked: it ends as it would without us
      signal.signal(number, signal.SIG_DFL)
      os.kill(os.getpid(), number)
      return
    if asked and number == signal.SIGINT:
      raise KeyboardInterrupt
    asked.append(number)
    if len(asked) == 1:
      name = signal.Signals(number).name
      with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(
          2, f"\n{name}: what is done is saved first; Ctrl-C again leaves at once\n".encode()
        )
      if several:
        os.kill(os.getpid(), signal.SIGTERM)
    if not several:
      deadline.stop(signal.Signals(number).name)

  def stopping(step: int) -> str:
    if several and not multihost_utils.reached_preemption_sync_point(step):
      return ""
    return signal.Signals(asked[0]).name if asked else "SIGTERM" if several else ""

  numbers = (signal.SIGINT,) if several else (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield stopping
  finally:
    deadline.forget()
    for number, old in before.items():
      signal.signal(number, old)


def how_to_go_on() -> str:
  """One line with the command that goes on from here: the one that this process was started by."""
  return f"to go on, run the same command again: {shlex.join(sys.orig_argv)}"
