"""Signals that stop a run."""

import os
import signal
import sys

import pytest

from grpo_jax.run import signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_a_second_interrupt_insists(number, capfd):
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  with signals.stop_signals() as stopping:
    assert stopping(0) == ""
    os.kill(os.getpid(), number)
    assert stopping(1) == number.name
    assert number.name in capfd.readouterr().err
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping(2) == number.name
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert signals.asked() == number.name  # also when the run has ended
  with signals.stop_signals():
    assert signals.asked() == ""
  assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_how_to_go_on_repeats_the_command(monkeypatch):
  monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "experiments.run", "--config=a b.py"])
  assert "python -m experiments.run '--config=a b.py'" in signals.how_to_resume()
