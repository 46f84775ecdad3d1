"""Calls of functions that a user wrote, such as rewards: they may raise, exit, hang, or be running when a signal comes.

    with Guard(seconds) as call:
      value = call(reward, example, completion)

Python code, also a regular expression, is stopped at its deadline. Code in C that holds the interpreter cannot be:
where one call does so for a minute beyond the deadline, the process ends and says in which line it was.
"""

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LATE = "took longer than"  # how the message of a Late begins
HELD_SECONDS = 60.0  # beyond the deadline, after which the process ends

_guards: list["Guard"] = []  # those in use; a signal stops the call of the last one
_asked: list[str] = []  # the signal that came


class Stopped(BaseException):
  """SIGTERM or Ctrl-C came while a guarded function ran, or before. No Exception, so that `except Exception` in the
  function lets it through.
  """


class Late(BaseException):
  """A guarded function ran beyond its deadline. No Exception, as `Stopped`."""


class Guard:
  """Calls functions with a deadline, and lets a signal stop them. Use it in a `with` block, in the main thread."""

  def __init__(self, seconds: float):
    """Makes a guard.

    Args:
      seconds: that one call may take; 0: any time. In another thread than the main one there is no deadline.
    """
    self.seconds, self.running, self.watched = seconds, False, 0.0
    self.timed = seconds > 0 and threading.current_thread() is threading.main_thread()

  def __enter__(self) -> "Guard":
    _guards.append(self)
    if self.timed:
      self.before = signal.signal(signal.SIGALRM, self._late)
    return self

  def __exit__(self, *exception: Any) -> None:
    _guards.remove(self)
    if self.timed:
      signal.signal(signal.SIGALRM, self.before)
      faulthandler.cancel_dump_traceback_later()

  def __call__(self, function: Callable, *args: Any) -> Any:
    """Returns `function(*args)`.

    Raises:
      Late: it took too long.
      Stopped: a signal came meanwhile, or before.
      ValueError: it called sys.exit, or raised what is no Exception.
    """
    if _asked:
      raise Stopped(_asked[0])
    if self.timed:
      self._watch()
      signal.signal(signal.SIGALRM, self._late)  # the call before may have set another handler
      signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)  # again each second, where the function catches it
    self.running = True
    try:
      return function(*args)
    except SystemExit as error:
      raise ValueError(f"called sys.exit({error.code!r})") from error
    except (Exception, Late, Stopped, KeyboardInterrupt):
      raise
    except BaseException as error:  # such as asyncio.CancelledError
      raise ValueError(f"raised {type(error).__name__}") from error
    finally:
      self.running = False  # before anything else: from here on an alarm means nothing
      if self.timed:
        signal.setitimer(signal.ITIMER_REAL, 0.0)

  def _late(self, *_: Any) -> None:
    """What the alarm does."""
    if self.running:
      raise Late(f"{LATE} {self.seconds:g} s (rewards.deadline)")

  def _watch(self) -> None:
    """Has the process end where the interpreter is held; set anew once a second, since it costs a thread."""
    now = time.perf_counter()
    if now - self.watched > 1.0:
      self.watched = now
      faulthandler.dump_traceback_later(self.seconds + HELD_SECONDS, exit=True, file=sys.__stderr__)


def stop(signal_name: str) -> None:
  """Stops the guarded function that is running, and every later one; a handler of signals calls it.

  Raises:
    Stopped: one is running.
  """
  _asked.append(signal_name)
  if _guards and _guards[-1].running:
    raise Stopped(signal_name)


def forget() -> None:
  """Lets guarded functions run again, when signals are handled in another way."""
  _asked.clear()
