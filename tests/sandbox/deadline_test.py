"""What a user's function may do, and what becomes of it: an exception, sys.exit, no end, a signal
meanwhile.
"""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, environment

from grpo_jax.run import signals
from grpo_jax.sandbox import deadline
from grpo_jax.sandbox.deadline import Guard, Late, Stopped


def forever():
  while True:
    pass


def stubborn():
  while True:
    try:
      time.sleep(0.01)
    except Exception:  # noqa: S110, BLE001  as users write it
      pass


def backtracking():
  return re.fullmatch(r"(a+)+b", "a" * 40)


@pytest.mark.parametrize("function", [forever, stubborn, backtracking, lambda: time.sleep(60)])
def test_a_call_without_an_end_is_stopped(function):
  start = time.perf_counter()
  with Guard(0.5) as call:
    for _ in range(2):
      with pytest.raises(Late, match=r"took longer than 0.5 s \(rewards.deadline\)"):
        call(function)
    assert call(lambda: 7) == 7
  assert time.perf_counter() - start < 30


def test_values_and_errors_come_through():
  with Guard(5.0) as call:
    assert call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
      call(divmod, 7, 0)
    with pytest.raises(ValueError, match=r"called sys.exit\(0\)"):
      call(sys.exit, 0)


def test_nothing_is_left_behind():
  before = signal.getsignal(signal.SIGALRM)
  with Guard(0.5) as call:
    call(lambda: None)
    time.sleep(0.7)  # beyond the deadline, but not in a call
  assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL) == (
    0.0,
    0.0,
  )


def test_a_function_may_have_alarms_of_its_own():
  def own():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(0)

  with Guard(0.2) as call:
    call(own)
    with pytest.raises(Late):
      call(forever)


def test_what_is_no_exception_becomes_one():
  def cancelled():
    raise asyncio.CancelledError

  with Guard(5.0) as call:
    with pytest.raises(ValueError, match="raised CancelledError"):
      call(cancelled)
    with pytest.raises(KeyboardInterrupt):
      call(interrupted)


def interrupted():
  raise KeyboardInterrupt


FORKED = """
import os, signal, time
from grpo_jax.run import signals
with signals.stop_signals() as stopping:
  child = os.fork()
  if child == 0:
    time.sleep(60)
  time.sleep(0.5)
  os.kill(child, signal.SIGTERM)
  print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), repr(stopping()))
"""


def test_a_child_of_a_reward_ends_as_it_would_without_us():
  done = subprocess.run(
    [sys.executable, "-c", FORKED], cwd=ROOT, env=environment(1), capture_output=True, text=True
  )
  assert done.stdout == f"{-signal.SIGTERM} ''\n" and "SIGTERM" not in done.stderr, done


GONE = """
import os, signal
from grpo_jax.run import signals
with signals.stop_signals() as stopping:
  read, write = os.pipe()
  os.close(read)
  os.dup2(write, 2)
  signal.raise_signal(signal.SIGTERM)
  print(stopping())
"""


def test_a_signal_is_heard_where_the_terminal_is_gone():
  done = subprocess.run(
    [sys.executable, "-c", GONE], cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, text=True
  )
  assert (done.returncode, done.stdout) == (0, "SIGTERM\n")


def test_no_deadline():
  with Guard(0.0) as call:
    assert call(lambda: signal.getitimer(signal.ITIMER_REAL)) == (0.0, 0.0)


def test_another_thread_has_no_deadline_and_works():
  found = []

  def run():
    with Guard(0.01) as call:
      found.append(call(lambda: time.sleep(0.05) or 3))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert found == [3]


@pytest.mark.parametrize("function", [forever, stubborn])
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_signal_stops_a_call_at_once(function, seconds, capfd):
  with signals.stop_signals() as stopping:
    threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM]).start()
    with pytest.raises(Stopped, match="SIGTERM"), Guard(seconds) as call:
      call(function)
    assert stopping() == "SIGTERM"
  assert "SIGTERM" in capfd.readouterr().err


def test_a_signal_outside_a_call_only_asks():
  with signals.stop_signals() as stopping, Guard(60.0) as call:
    call(lambda: None)
    signal.raise_signal(signal.SIGTERM)
    assert stopping() == "SIGTERM"


HELD = """
import itertools
from grpo_jax.sandbox import deadline as guard
guard.HELD_SECONDS = 0.5
with guard.Guard(0.5) as call:
  call(sum, itertools.repeat(1))  # C code that never lets go of the interpreter
"""


def test_code_that_holds_the_interpreter_ends_the_process():
  done = subprocess.run(
    [sys.executable, "-c", HELD], cwd=ROOT, env=environment(1), capture_output=True, text=True
  )
  assert (
    done.returncode == 1 and "Timeout" in done.stderr and 'File "<string>", line 6' in done.stderr
  )


def test_a_guarded_call_costs_little():
  with Guard(10.0) as call:
    call(int)
    start = time.perf_counter()
    for _ in range(1000):
      call(int)
    assert time.perf_counter() - start < 0.5  # some microseconds each; the machine may be busy
  assert not deadline._guards


def test_a_signal_before_a_call_stops_it():
  with signals.stop_signals():
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped), Guard(60.0) as call:
      call(lambda: pytest.fail("it was called"))
  with Guard(60.0) as call:
    assert call(lambda: 7) == 7
