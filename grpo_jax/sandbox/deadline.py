"""Calls of functions that a user wrote, such as rewards: they may raise, exit, hang, or be running
when a signal comes.

    with Guard(seconds) as call:
      value = call(reward, example, completion)

Python code, also a regular expression, is stopped at its deadline. Code in C that holds the
interpreter cannot be: where one call does so for a minute beyond the deadline, the process ends and
says in which line it was.

What a function leaves behind in this process is undone after each call, with a warning that names
the function: another working directory, other handlers of SIGINT and SIGTERM, another sys.stdout or
sys.stderr. An output that it closed is opened again after the last of many calls. `os._exit` ends
the call and not the process. A child that a function forked and that returns from it ends there,
and does not go on as a second run.
"""

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from _signal import (
  getsignal,
)  # that of signal.py looks for an enum of each handler first, which takes microseconds
from collections.abc import Callable, Iterator
from typing import Any

LATE = "took longer than"  # how the message of a Late begins
HELD_SECONDS = 60.0  # beyond the deadline, after which the process ends

_guards: list["Guard"] = []  # those in use; a signal stops the call of the last one
_asked: list[str] = []  # the signal that came
_warned: set[str] = set()  # what was warned of


class Stopped(BaseException):
  """SIGTERM or Ctrl-C came while a guarded function ran, or before. No Exception, so that `except
  Exception` in the function lets it through.
  """


class Late(BaseException):
  """A guarded function ran beyond its deadline. No Exception, as `Stopped`."""


class _Exited(BaseException):
  """A guarded function called os._exit. No Exception, as `Stopped`."""


class Guard:
  """Calls functions with a deadline, and lets a signal stop them. Use it in a `with` block, in the
  main thread.
  """

  def __init__(self, seconds: float):
    """Makes a guard.

    Args:
      seconds: that one call may take; 0: any time. In another thread than the main one there is no
        deadline.
    """
    self.seconds, self.running, self.watched = seconds, False, 0.0
    self.main = threading.current_thread() is threading.main_thread()
    self.timed = seconds > 0 and self.main
    self.thread, self.process, self.late = threading.get_ident(), os.getpid(), self._late

  def __enter__(self) -> "Guard":
    _guards.append(self)
    self.exit, os._exit = os._exit, functools.partial(_exit_call, self, os._exit)
    self.left, self.outputs = _Left(self.main), {number: _copy(number) for number in (1, 2)}
    if self.timed:
      self.before = signal.signal(signal.SIGALRM, self.late)
    return self

  def __exit__(self, *exception: Any) -> None:
    _guards.remove(self)
    os._exit = self.exit
    for number, kept in self.outputs.items():
      _put_back(number, kept)
    if self.timed:
      signal.signal(signal.SIGALRM, self.before)
      faulthandler.cancel_dump_traceback_later()

  def __call__(self, function: Callable, *args: Any) -> Any:
    """Returns `function(*args)`.

    Raises:
      Late: it took too long.
      Stopped: a signal came meanwhile, or before.
      ValueError: it called sys.exit or os._exit, or raised what is no Exception.
    """
    if _asked:
      raise Stopped(_asked[0])
    if self.timed:
      self._watch()
      if getsignal(signal.SIGALRM) != self.late:  # the call before has set another handler
        signal.signal(signal.SIGALRM, self.late)
      # again each second, where the function catches it
      signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
    self.running = True
    try:
      return function(*args)
    except SystemExit as error:
      raise ValueError(f"called sys.exit({error.code!r})") from error
    except _Exited as error:
      raise ValueError(f"called os._exit({error})") from error
    except (Exception, Late, Stopped, KeyboardInterrupt):
      raise
    except BaseException as error:  # such as asyncio.CancelledError
      raise ValueError(f"raised {type(error).__name__}") from error
    finally:
      self.running = False  # before anything else: from here on an alarm means nothing
      if os.getpid() != self.process:
        _end_child()
      if self.timed:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
      if changed := self.left.undo():
        warn(f"{_title(function, args)} changed {changed}, which was changed back")

  def _late(self, *_: Any) -> None:
    """What the alarm does."""
    if self.running:
      raise Late(f"{LATE} {self.seconds:g} s (rewards.deadline)")

  def _watch(self) -> None:
    """Has the process end where the interpreter is held; set anew once a second, since it costs a
    thread.
    """
    now = time.perf_counter()
    if now - self.watched > 1.0:
      self.watched = now
      faulthandler.dump_traceback_later(self.seconds + HELD_SECONDS, exit=True, file=sys.__stderr__)


class _Left:
  """What a function can leave behind in this process: how it is now, and how to have it so again."""

  def __init__(self, main: bool):
    """Notes how it is; handlers of signals belong to the main thread."""
    self.signals = {n: getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    self.streams = sys.stdout, sys.stderr
    self.folder = _folder()

  def undo(self) -> str:
    """Undoes what has changed, and returns what that was in words; "" where nothing has."""
    found = []
    if (folder := _folder()) != self.folder:
      found.append(f"the working directory to {folder}")
      with contextlib.suppress(OSError):  # it was deleted
        os.chdir(self.folder)
    for number, handler in self.signals.items():
      if getsignal(number) != handler and handler is not None:  # None: it is one of C
        found.append(f"the handler of {signal.Signals(number).name}")
        signal.signal(number, handler)
    if (sys.stdout, sys.stderr) != self.streams:
      found.append("sys.stdout or sys.stderr")
      sys.stdout, sys.stderr = self.streams
    return " and ".join(found)


@contextlib.contextmanager
def in_folder(title: str) -> Iterator[None]:
  """Changes back to the working directory of before, where code of the block has changed it, with a
  warning.

  Args:
    title: of the code, for the warning.
  """
  before = _folder()
  try:
    yield
  finally:
    go_back(before, title)


def go_back(folder: str, title: str) -> None:
  """Changes the working directory back to a folder, where it is another one, with a warning; see
  `in_folder`.
  """
  if folder and (found := _folder()) != folder:
    with contextlib.suppress(OSError):  # it was deleted
      os.chdir(folder)
    warn(f"{title} changed the working directory to {found}, which was changed back")


def _folder() -> str:
  """Returns the working directory, "" where it was deleted."""
  try:
    return os.getcwd()
  except OSError:
    return ""


def _copy(number: int) -> int:
  """Returns a copy of an open file of this process, by its number; -1 where there is none."""
  try:
    return os.dup(number)
  except OSError:
    return -1


def _put_back(number: int, kept: int) -> None:
  """Opens the output of that number again where a function closed it: the next file to be opened
  would take its place.

  Args:
    number: 1 or 2.
    kept: its copy, which is closed.
  """
  if kept < 0:
    return
  same = False
  with contextlib.suppress(OSError):
    same = os.path.sameopenfile(number, kept)
  if not same:
    os.dup2(kept, number)
    warn(
      f"a reward closed or replaced the standard {'error' if number == 2 else 'output'}, which was "
      "opened again"
    )
  os.close(kept)


def _exit_call(guard: Guard, before: Callable[[int], None], code: int) -> None:
  """Takes the place of os._exit: ends a guarded call in this process and its thread, and anything
  else as before.
  """
  if guard.running and os.getpid() == guard.process and threading.get_ident() == guard.thread:
    raise _Exited(repr(code))
  before(code)


def _end_child() -> None:
  """Ends a forked child that returns from a guarded function: it would go on as a second run in the
  same folder.
  """
  with contextlib.suppress(OSError):
    os.write(
      2, b"warning: a child process that was forked in a reward returned from it, and was ended\n"
    )
  os.kill(os.getpid(), signal.SIGKILL)


def _title(function: Callable, args: tuple) -> str:
  """Returns a function's name and file; a checked call is one of a function that takes the user's
  first.
  """
  user = args[0] if args and callable(args[0]) else function
  while (inner := getattr(user, "__wrapped__", getattr(user, "func", None))) is not None:
    user = inner
  where = getattr(getattr(user, "__code__", None), "co_filename", "")
  return getattr(user, "__name__", type(user).__name__) + (f" ({where})" if where else "")


def warn(text: str) -> None:
  """Prints a warning once; the output may be closed by now."""
  if text not in _warned:
    _warned.add(text)
    with contextlib.suppress(OSError, ValueError):
      print(f"warning: {text}", flush=True)


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
