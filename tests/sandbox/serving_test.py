"""Child processes with limits, and how they end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, environment
from processes import gone

from grpo_jax.sandbox import worker

ALLOCATES = """
import os, sys, time
sys.path.insert(0, {root!r})
from grpo_jax.sandbox import serving

def answer(request):
  if request["do"] == "fill":
    return {{"length": len(bytes(2**40))}}  # at once: to fill pages is to compute, too
  if request["do"] == "sleep":
    time.sleep(60)
  if request["do"] == "die":
    os.closerange(3, 64)  # the pipes of a process that ends close before it has ended
    time.sleep(0.3)
    os._exit(7)
  while request["do"] == "compute":
    pass
  if request["do"] == "print":
    print("not a reply", flush=True)
  if request["do"] == "write":
    os.write(os.open({file!r}, os.O_WRONLY | os.O_CREAT), b"x")
  return {{"did": request["do"]}}

if __name__ == "__main__":
  serving.serve(answer, 128 * 2**20, 0.2, patience=4.8)
"""


def test_limits_of_a_process(tmp_path, monkeypatch):
  (tmp_path / "limited.py").write_text(
    ALLOCATES.format(root=str(ROOT), file=str(tmp_path / "written"))
  )
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  process = worker.Process("limited")
  assert process.ask({"do": "nothing"}) == {"did": "nothing"}
  number = process.process.pid
  assert process.ask({"do": "print"}) == {"did": "print"}
  assert "as one that needs more than 128 MB of memory" in process.ask({"do": "fill"})["error"]
  assert process.ask({"do": "compute"}) == {"error": "computes for more than 0.2 seconds"}
  assert process.ask({"do": "sleep"}) == {"error": "takes more than 5 seconds"}
  assert "ended its process with code 1" in process.ask({"do": "write"})["error"]
  assert "ended its process with code 7" in process.ask({"do": "die"})["error"]
  assert not (tmp_path / "written").exists() or not (tmp_path / "written").read_text()
  assert process.ask({"do": "nothing"}) == {"did": "nothing"} and process.process.pid == number
  process.process.kill()
  assert process.ask({"do": "nothing"}) == {"error": "ended its process with code -9"}
  assert process.ask({"do": "nothing"}) == {"did": "nothing"}
  process.stop()


PROGRAMS = """
import json, os, subprocess, sys
sys.path.insert(0, {root!r})
from grpo_jax.sandbox import serving

def answer(request):
  program = subprocess.Popen(["sleep", "100"])
  with open({file!r} + ".part", "w") as file:
    json.dump([os.getppid(), os.getpid(), program.pid], file)
  os.replace({file!r} + ".part", {file!r})
  if request["do"] == "wait":
    program.wait()
  if request["do"] == "leave":
    os._exit(7)
  return {{}}

if __name__ == "__main__":
  serving.serve(answer, 2**30, float(sys.argv[1]), patience=0.0, files=True)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
  """Makes a module that starts a program for each request.

  Returns:
    What waits for the ids of the worker, of its child and of the program.
  """
  (tmp_path / "programs.py").write_text(
    PROGRAMS.format(root=str(ROOT), file=str(tmp_path / "pids"))
  )
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))

  def pids():
    end = time.monotonic() + 60
    while not (tmp_path / "pids").exists() and time.monotonic() < end:
      time.sleep(0.01)
    return json.loads((tmp_path / "pids").read_text())

  return pids


RUN = """
import sys
sys.path.insert(0, {root!r})
from grpo_jax.sandbox import worker
worker.Process("programs", "1e8").ask({{"do": "wait"}})
"""


def test_what_works_without_a_limit_ends_when_the_run_is_killed(programs):
  command = [sys.executable, "-c", RUN.format(root=str(ROOT))]
  with subprocess.Popen(command, env=environment()) as run:
    try:
      running = programs()
    finally:
      run.kill()
  assert all(gone(pid) for pid in running)


def test_programs_of_a_request_end_with_its_child(programs):
  process = worker.Process("programs", "2")
  assert process.ask({"do": "wait"}) == {"error": "takes more than 2 seconds"}
  assert gone(programs()[2])
  assert process.ask({"do": "leave"})["error"].startswith("ended its process with code 7")
  assert gone(programs()[2])
  assert process.ask({"do": "nothing"}) == {}
  process.stop()
  assert gone(programs()[2])


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_worker_that_is_ended_takes_its_child_and_programs_along(programs, end):
  process = worker.Process("programs", "1e8")
  process.send({"do": "wait"})
  running = programs()
  getattr(process, end)()
  assert all(gone(pid) for pid in running)
  process.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no child of it")
def test_a_child_ends_where_its_worker_alone_is_killed(programs):
  process = worker.Process("programs", "1e8")
  process.send({"do": "wait"})
  number, child, program = programs()
  os.kill(number, signal.SIGKILL)
  assert gone(child)
  process.stop()
  with contextlib.suppress(ProcessLookupError):
    os.kill(program, signal.SIGKILL)
