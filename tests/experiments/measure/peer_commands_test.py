"""Checks what a peer is told, and what is refused because it cannot do it."""

import sys

import pytest

from experiments.measure import benchmarks, peer_commands


@pytest.mark.parametrize(
  ("peer", "arg", "message"),
  [
    ("tunix", "tail=true", "use --vs=trl"),
    ("trl", "mixed=true", "prompts of one length only"),
    ("trl", "top_p=0.9", "top_p=0.9 with --vs=trl"),
    ("trl", "dtype=bfloat16", "dtype=bfloat16 with --vs=trl"),
    ("trl", "lora=4", "variant and lora with --vs=trl"),
    ("trl", "head_dim=32", "head_dim=32 with --vs=trl"),
  ],
)
def test_a_peer_that_cannot_do_the_same_is_not_compared(peer, arg, message, capsys):
  with pytest.raises(SystemExit):
    peer_commands.of_peer(peer, "python", benchmarks.get_config(arg))
  assert message in capsys.readouterr().err


def test_a_python_without_the_peer_is_refused(tmp_path, monkeypatch, capsys):
  """Takes one that can import it, whatever it is."""
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  (tmp_path / "trl.py").touch()
  peer_commands.check_peer("trl", sys.executable)
  (tmp_path / "trl.py").write_text("raise ImportError('no torch')")
  for python, message in [
    (f"{tmp_path}/none", "does not start (No such file or directory); use the Python of"),
    (str(tmp_path), "does not start (Permission denied); use the Python of an environment"),
    (sys.executable, "cannot import trl (ImportError: no torch); use the Python of an environment"),
  ]:
    with pytest.raises(SystemExit):
      peer_commands.check_peer("trl", python)
    err = capsys.readouterr().err
    assert err.startswith(f"error: --peer={python}: {message}") and err.count("\n") == 1


@pytest.mark.parametrize(
  ("command", "argument"),
  [
    ("benchmark", "--config=experiments/measure/benchmarks.py"),
    ("growth", "--workdir=~/growth"),
  ],
)
def test_a_tilde_in_the_peer_is_the_home_directory(command, argument, program, tmp_path):
  pytest.importorskip("matplotlib")
  flags = [argument, "--vs=trl", "--peer=~/none"]
  done = program(f"experiments.measure.{command}", *flags, HOME=str(tmp_path))
  assert done.returncode == 2
  assert done.stderr.startswith(f"error: --peer={tmp_path}/none: does not start")


def test_a_peer_is_told_the_workload():
  command = peer_commands.of_peer(
    "trl", "python", benchmarks.get_config("mu=4,completion=64,tail=true")
  )
  assert {"--mu=4", "--completion=64", "--tail", "--width=512"} <= set(command)
