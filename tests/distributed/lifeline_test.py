"""What two processes say to each other over their lifeline, without processes: two ends of one
connection.
"""

import contextlib
import socket
import threading
import time
import types

import numpy as np
import pytest

from grpo_jax.distributed import lifeline
from grpo_jax.distributed.lifeline import Lifeline
from grpo_jax.types import Prompts


class Ends:
  """Two lifelines that are connected, and how each would have left."""

  def __init__(self, monkeypatch):
    self.lines, self.left = [], {}
    for index, end in enumerate(socket.socketpair()):
      line = Lifeline()
      line.index, line.several, line.connected = index, True, {1 - index: end}
      line.names = ["host 0", "host 1"]
      self.lines.append(line)
    self.patch = monkeypatch
    monkeypatch.setattr(lifeline, "_leave", lambda line, code: self.left.update({line.index: code}))
    self.watching = [
      threading.Thread(target=lifeline._watch, args=(line,), daemon=True) for line in self.lines
    ]
    self.sockets = [end for line in self.lines for end in line.connected.values()]
    for thread in self.watching:
      thread.start()

  def beat(self, index):
    threading.Thread(target=lifeline._beat, args=(self.lines[index],), daemon=True).start()

  def on(self, index, function, *args):
    self.patch.setattr(lifeline, "_current", [self.lines[index]])
    function(*args)

  def wait(self, seconds=10.0):
    """Waits until both have left."""
    deadline = time.monotonic() + seconds
    while len(self.left) < 2 and time.monotonic() < deadline:
      time.sleep(0.01)
    return self.left


@pytest.fixture
def ends(monkeypatch):
  ends = Ends(monkeypatch)
  yield ends
  for line in ends.lines:
    line.done = {0, 1}
    line.ending.set()
  for end in ends.sockets:
    with contextlib.suppress(OSError):  # the other end is closed already
      end.shutdown(socket.SHUT_RDWR)
  # closed only when no thread reads: another file may get the number of a closed one
  for thread in ends.watching:
    thread.join(10)
    assert not thread.is_alive()
  for end in ends.sockets:
    end.close()


def prompts(*rows):
  return Prompts(np.array(rows, np.int32), np.full(len(rows), len(rows[0]), np.int32))


def test_the_same_prompts_go_on_and_nothing_is_kept_of_them(ends):
  for step in range(3):
    for host in (step % 2, 1 - step % 2):  # whichever is first
      ends.on(host, lifeline.begin, f"step {step + 1}")
      ends.on(host, lifeline.compare, prompts([step, 1]))
  ends.on(0, lifeline.settle)
  assert not ends.left and not ends.lines[0].compared and ends.lines[0].count == 3


@pytest.mark.parametrize("first", [0, 1])
def test_other_prompts_end_both_with_the_step_and_the_host(ends, capfd, first):
  for host in (first, 1 - first):
    ends.on(host, lifeline.begin, "step 7")
    ends.on(host, lifeline.compare, prompts([1, 2 + host]))
  assert ends.wait() == {0: 2, 1: 2}
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) == 2 and len(set(lines)) == 1
  assert lines[0].startswith(
    "error: host 1: its prompts of step 7 are not those of host 0: the order of the data"
  )


def test_a_host_that_is_at_another_step_ends_both(ends, capfd):
  for host in range(2):
    ends.on(host, lifeline.begin, f"step {host}")
    ends.on(host, lifeline.compare, prompts([1]))
  assert ends.wait() == {0: 2, 1: 2}
  assert "host 1: it is at step 1 while host 0 is at step 0" in capfd.readouterr().err


def test_a_step_is_not_saved_before_it_is_known_to_be_the_same_on_all(ends):
  ends.on(0, lifeline.compare, prompts([1]))
  waiting = threading.Thread(target=lifeline.settle, daemon=True)
  waiting.start()
  time.sleep(0.2)
  assert waiting.is_alive()
  ends.on(1, lifeline.compare, prompts([1]))
  ends.on(0, lambda: waiting.join(5))
  assert not waiting.is_alive()


def test_a_checksum_is_of_numpy_arrays_and_their_order():
  a, b = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
  assert lifeline.checksum((a, b)) == lifeline.checksum([a, b]) != lifeline.checksum((b, a))
  assert lifeline.checksum((a, None)) == lifeline.checksum(a) != lifeline.checksum(a[::-1])
  # on the mesh: left out
  assert lifeline.checksum((lifeline.jax.numpy.ones(3), a)) == lifeline.checksum(a)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_host_that_says_nothing_is_lost_and_named_and_one_that_does_is_not(
  ends, monkeypatch, capfd, silent
):
  monkeypatch.setattr(lifeline, "SILENT_SECONDS", 1.0)
  monkeypatch.setattr(lifeline, "NOTICE_SECONDS", 0.05)
  monkeypatch.setattr(lifeline, "BEAT_SECONDS", 0.1)
  ends.beat(1 - silent)
  assert ends.wait() == {0: 1, 1: 1}
  said = capfd.readouterr().err.splitlines()[0]
  assert said.startswith(
    f"error: host {silent}: it has not answered for 1 s: stopped, or its machine"
  )


def test_hosts_that_beat_are_not_lost(ends, monkeypatch):
  monkeypatch.setattr(lifeline, "SILENT_SECONDS", 2.0)
  monkeypatch.setattr(lifeline, "NOTICE_SECONDS", 0.05)
  monkeypatch.setattr(lifeline, "BEAT_SECONDS", 0.05)
  for host in range(2):
    ends.beat(host)
  time.sleep(3.0)
  assert not ends.left


def test_one_process_compares_nothing():
  lifeline.begin("step 1")
  lifeline.compare(prompts([1]))
  lifeline.settle()
  assert not lifeline._current


def test_a_host_that_was_stopped_itself_does_not_take_the_others_for_silent(ends, monkeypatch):
  clock = types.SimpleNamespace(
    monotonic=lambda: time.monotonic() + clock.jump, sleep=time.sleep, jump=0.0
  )
  monkeypatch.setattr(lifeline, "time", clock)
  monkeypatch.setattr(lifeline, "NOTICE_SECONDS", 0.05)
  monkeypatch.setattr(lifeline, "BEAT_SECONDS", 0.5)
  for host in range(2):
    ends.beat(host)
  time.sleep(1.2)  # between two beats
  clock.jump = 100.0  # as if nothing here had run for so long
  time.sleep(1.0)
  assert not ends.left
