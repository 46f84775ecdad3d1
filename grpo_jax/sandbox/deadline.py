"""Calls functions that a user wrote, such as rewards, which may raise, exit or hang.

    with Guard(seconds) as call:
      value = call(reward, example, completion)

A call of Python code or of a regular expression is stopped at its deadline. C code that holds the
interpreter cannot be stopped: if one call does so until a minute after the deadline, the process
ends and prints the line of code that it was in.

Changes that a function makes to this process are undone after each call, with a warning that names
the function: another working directory, other handlers of SIGINT and SIGTERM, another sys.stdout or
sys.stderr. An output that it closed is opened again when the `with` block ends. `os._exit` ends the
call instead of the process. A forked child that returns from the function is killed, or it would
continue as a second run.
"""

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from _signal import getsignal  # signal.getsignal wraps each handler in an enum: microseconds a call
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar, TypeVarTuple

LATE = "took longer than"  # the message of a Late starts with this
HELD_SECONDS = 60.0  # after the deadline, the process ends if the interpreter is still held

T = TypeVar("T")
Args = TypeVarTuple("Args")

_guards: list["Guard"] = []  # the guards in use; a signal stops the call of the last one
_signals: list[str] = []  # names of the signals that came
_warned: set[str] = set()  # the warnings that were printed


class Stopped(BaseException):
  """SIGTERM or Ctrl-C came before or during a guarded call; not an Exception, so rarely caught."""


class Late(BaseException):
  """A guarded function ran past its deadline; not an Exception, so rarely caught."""


class _Exited(BaseException):
  """A guarded function called os._exit; not an Exception, so rarely caught."""


class Guard:
  """Calls functions with a deadline and lets a signal stop them, inside a `with` block."""

  def __init__(self, seconds: float):
    """Makes a guard whose calls may take `seconds` each (0: any time).

    There is no deadline outside the main thread.
    """
    self.seconds, self.running, self.watched = seconds, False, 0.0
    self.main = threading.current_thread() is threading.main_thread()
    self.timed = seconds > 0 and self.main
    self.thread, self.process, self.late = threading.get_ident(), os.getpid(), self._on_alarm

  def __enter__(self) -> "Guard":
    _guards.append(self)
    self.exit, os._exit = os._exit, functools.partial(_exit_call, self, os._exit)
    self.state, self.outputs = _State(self.main), {fd: _duplicate(fd) for fd in (1, 2)}
    if self.timed:
      self.before = signal.signal(signal.SIGALRM, self.late)
    return self

  def __exit__(self, *exception: object) -> None:
    _guards.remove(self)
    os._exit = self.exit
    for fd, copy in self.outputs.items():
      _reopen(fd, copy)
    if self.timed:
      signal.signal(signal.SIGALRM, self.before)
      faulthandler.cancel_dump_traceback_later()

  def __call__(self, function: Callable[[*Args], T], *args: *Args) -> T:
    """Returns `function(*args)`.

    Raises:
      Late: it took too long.
      Stopped: a signal came during or before the call.
      ValueError: it called sys.exit or os._exit, or raised something that is not an Exception.
    """
    if _signals:
      raise Stopped(_signals[0])
    if self.timed:
      self._watch()
      if getsignal(signal.SIGALRM) != self.late:  # an earlier call set another handler
        signal.signal(signal.SIGALRM, self.late)
      # the alarm repeats every second, since the function may catch it
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
      self.running = False  # first of all: from here on the alarm is ignored
      if os.getpid() != self.process:
        _end_child()
      if self.timed:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
      if changes := self.state.restore():
        warn(f"{_title(function, args)} changed {changes}, which was changed back")

  def _on_alarm(self, *_: object) -> None:
    if self.running:
      raise Late(f"{LATE} {self.seconds:g} s (rewards.deadline)")

  def _watch(self) -> None:
    """Schedules the end of a process that holds the interpreter; renewed at most once a second."""
    now = time.perf_counter()
    if now - self.watched > 1.0:  # each renewal starts a thread
      self.watched = now
      stderr = sys.__stderr__ or sys.stderr
      faulthandler.dump_traceback_later(self.seconds + HELD_SECONDS, exit=True, file=stderr)


class _State:
  """Records what a function could change in this process, in order to restore it."""

  def __init__(self, main: bool):
    """Records the state; handlers of signals only in the main thread."""
    self.signals = {n: getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    self.streams = sys.stdout, sys.stderr
    self.folder = _folder()

  def restore(self) -> str:
    """Restores whatever has changed and returns a description of the changes ("" if none)."""
    changes = []
    if (folder := _folder()) != self.folder:
      changes.append(f"the working directory to {folder}")
      with contextlib.suppress(OSError):  # it was deleted
        os.chdir(self.folder)
    for number, handler in self.signals.items():
      if getsignal(number) != handler and handler is not None:  # None: a handler written in C
        changes.append(f"the handler of {signal.Signals(number).name}")
        signal.signal(number, handler)
    if (sys.stdout, sys.stderr) != self.streams:
      changes.append("sys.stdout or sys.stderr")
      sys.stdout, sys.stderr = self.streams
    return " and ".join(changes)


@contextlib.contextmanager
def in_folder(title: str) -> Iterator[None]:
  """Restores the working directory after a block of code that the warning calls `title`."""
  before = _folder()
  try:
    yield
  finally:
    go_back(before, title)


def go_back(folder: str, title: str) -> None:
  """Changes back to `folder` if the code called `title` has left it, with a warning."""
  if folder and (now := _folder()) != folder:
    with contextlib.suppress(OSError):  # it was deleted
      os.chdir(folder)
    warn(f"{title} changed the working directory to {now}, which was changed back")


def _folder() -> str:
  """Returns the working directory, or "" if it was deleted."""
  try:
    return os.getcwd()
  except OSError:
    return ""


def _duplicate(fd: int) -> int:
  """Returns a copy of a file descriptor, or -1 if it is not open."""
  try:
    return os.dup(fd)
  except OSError:
    return -1


def _reopen(fd: int, copy: int) -> None:
  """Opens output `fd` (1 or 2) again from its copy if a function closed it, and closes the copy.

  Otherwise the next file to be opened would get that descriptor.
  """
  if copy < 0:
    return
  same = False
  with contextlib.suppress(OSError):
    same = os.path.sameopenfile(fd, copy)
  if not same:
    os.dup2(copy, fd)
    output = "error" if fd == 2 else "output"
    warn(f"a reward closed or replaced the standard {output}, which was opened again")
  os.close(copy)


def _exit_call(guard: Guard, exit_process: Callable[[int], NoReturn], code: int) -> NoReturn:
  """Replaces os._exit: ends the guarded call of this process and thread, or else the process."""
  if guard.running and os.getpid() == guard.process and threading.get_ident() == guard.thread:
    raise _Exited(repr(code))
  exit_process(code)


def _end_child() -> None:
  """Kills a forked child that returned from a guarded function, with a warning."""
  with contextlib.suppress(OSError):
    os.write(
      2, b"warning: a child process that was forked in a reward returned from it, and was ended\n"
    )
  os.kill(os.getpid(), signal.SIGKILL)


def _title(function: object, args: tuple[object, ...]) -> str:
  """Returns the name and file of the user's function: the first argument if it is callable."""
  user = args[0] if args and callable(args[0]) else function
  while (inner := getattr(user, "__wrapped__", getattr(user, "func", None))) is not None:
    user = inner
  file = getattr(getattr(user, "__code__", None), "co_filename", "")
  return getattr(user, "__name__", type(user).__name__) + (f" ({file})" if file else "")


def warn(text: str) -> None:
  """Prints a warning, once; the output may be closed by now."""
  if text not in _warned:
    _warned.add(text)
    with contextlib.suppress(OSError, ValueError):
      print(f"warning: {text}", flush=True)


def stop(signal_name: str) -> None:
  """Makes the running guarded call and every later one raise `Stopped`; handlers of signals use it.

  Raises:
    Stopped: a call is running.
  """
  _signals.append(signal_name)
  if _guards and _guards[-1].running:
    raise Stopped(signal_name)


def forget() -> None:
  """Allows guarded calls again after a signal, once signals are handled in another way."""
  _signals.clear()
