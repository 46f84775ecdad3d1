"""Signals that stop a run."""

import itertools
import os
import signal
import socket
import subprocess
import sys

import jax
import pytest
from conftest import ROOT, environment

from grpo_jax.run import signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_a_second_interrupt_insists(number, capfd):
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  with signals.stop_signals() as stopping:
    assert stopping() == ""
    os.kill(os.getpid(), number)
    assert stopping() == number.name
    assert number.name in capfd.readouterr().err
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping() == number.name
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert signals.asked() == number.name  # also when the run has ended
  with signals.stop_signals():
    assert signals.asked() == ""
  assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_how_to_go_on_repeats_the_command(monkeypatch):
  monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "experiments.run", "--config=a b.py"])
  assert "python -m experiments.run '--config=a b.py'" in signals.how_to_resume()


def test_hosts_agree_by_the_number_of_the_call(monkeypatch):
  """jax asks for numbers that each host counts up by 1, from run to run and from 0."""
  numbers = []

  def reached(number):
    numbers.append(number)
    return number == 3

  monkeypatch.setattr(signals, "_calls", itertools.count(1))
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  monkeypatch.setattr(signals.multihost_utils, "reached_preemption_sync_point", reached)
  said = []
  for _ in range(2):
    with signals.stop_signals() as stopping:
      said += [stopping(), stopping()]
  assert numbers == [1, 2, 3, 4] and said == ["", "", "SIGTERM", ""]


EARLY = """
import os, signal, sys, time
import jax
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 1, 0)
from grpo_jax.run import signals
os.kill(os.getpid(), signal.SIGTERM)
with signals.stop_signals() as stopping:
  until = time.monotonic() + 60
  while not (name := stopping()) and time.monotonic() < until:
    time.sleep(0.05)
print(name, signals.asked())
"""


def test_a_signal_before_the_run_stops_one_host_that_has_joined():
  """Once a process has joined others, if only itself, jax takes SIGTERM, which ends it no more."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = str(s.getsockname()[1])
  command = [sys.executable, "-c", EARLY, port]
  out = subprocess.check_output(command, cwd=ROOT, env=environment(1), text=True, timeout=120)
  assert out == "SIGTERM SIGTERM\n"
