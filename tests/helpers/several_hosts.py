"""Runs of several real processes on this machine, which talk as the hosts of a pod do (through
gloo).
"""

import json
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

import conftest

CONFIG = """
import os
from grpo_jax.setup import defaults
import small_models
from grpo_jax.errors import SettingError

def get_config():
  c = defaults.get_config()
  c.steps = 4
  c.tokenizer = "words"
  c.model.variant = "test_llama"
  c.data.prompts = 4
  c.sampler.group = 4
  c.sampler.max_length = 8
  c.sampler.tries = 2
  c.rewards.functions = (("parity", __file__ + ":parity", 1.0),)
  c.learner.lr = 1e-2
  c.learner.adam_eps = 1e-3  # a gradient of nearly 0 would have a step of +lr or -lr, as rounding goes
  c.eval.problems = 0
  c.eval.batch = 8
  c.eval.samples = 0
  c.eval.reward = __file__ + ":solved"
  c.checkpoint.every = 2
  c.checkpoint.export = False
  c.log.measure_every = 0
  c.log.samples_every = 0
  c.log.writers = ()
  c.compilation_cache = ""  # what any test compiles is kept already (conftest.py)
  return c

def parity(example, completion):
  if not completion.ended and os.environ.get("FAULT") == "setting":  # solutions, on which it is tried, have ended
    raise SettingError("parity: cannot work on this host; use another")
  if not completion.ended and os.environ.get("FAULT") == "value" and sum(completion.tokens) % 3:
    raise ValueError("on this host alone")
  return sum(completion.tokens) % 5 / 4

def solved(example, completion):
  if not completion.ended and os.environ.get("FAULT") == "eval":
    raise SettingError("solved: cannot work on this host; use another")
  return float(sum(completion.tokens) % 2)
"""

# `python -c` this WHAT PHASE COUNT arguments...: the run, to which something happens when it enters
# the phase for the COUNTth time. "stale": every checkpoint but the first looks damaged to this
# process alone.
STRUCK = """
import os, pathlib, runpy, signal, sys, time
what, phase, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.argv[1:] = sys.argv[4:]
from grpo_jax.run import checkpoint
from grpo_jax.run import writer as metrics
original, entered, restore = metrics.Writer.phase, [], checkpoint._restore
def strike():
  pathlib.Path(os.environ["STRUCK"]).write_text(str(time.time()))
  if what == "raise":
    raise ValueError("struck")
  if what == "interrupt":
    raise KeyboardInterrupt
  os.kill(os.getpid(), getattr(signal, what))
def patched(writer, name, arrays=None):
  if name == phase:
    entered.append(name)
    if len(entered) == count:
      strike()
    if len(entered) >= count:
      time.sleep(1.0)  # hosts agree on a step to stop at that none has passed: steps of milliseconds would all pass
  return original(writer, name, arrays)
def stale(path, states):
  if path.name != "0":
    raise OSError(5, "Input/output error")
  return restore(path, states)
if what == "stale":
  checkpoint._restore = stale
else:
  metrics.Writer.phase = patched
runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
"""


class Ended(NamedTuple):
  """How one process of a run ended."""

  code: int
  stdout: str
  stderr: str
  at: float  # seconds since the epoch


class Hosts:
  """Runs of one config in a folder; compiled programs are kept from one to the next."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    (folder / "tiny.py").write_text(CONFIG)

  def run(
    self,
    processes: int,
    workdir: str,
    *more: str,
    strike: tuple[int, str, str, int] | None = None,
    fault: str = "",
  ) -> list[Ended]:
    """A run of so many processes, to its end.

    Args:
      processes: how many; 1: the command without --coordinator.
      workdir: its name.
      *more: arguments.
      strike: (process, what, phase, count), see STRUCK.
      fault: FAULT of the last process, see CONFIG.
    """
    arguments = [f"--config={self.folder / 'tiny.py'}", f"--workdir={self.folder / workdir}", *more]
    started = []
    port = free_port()
    for process in range(processes):
      joined = [
        f"--coordinator=localhost:{port}",
        f"--processes={processes}",
        f"--process={process}",
      ]
      how = ["-m", "experiments.run"]
      if strike and strike[0] == process:
        how = ["-c", STRUCK, *map(str, strike[1:])]
      env = {
        "PYTHONPATH": str(pathlib.Path(__file__).parent),
        "FAULT": fault if process == processes - 1 else "",
        "STRUCK": str(self.folder / f"{workdir}.struck"),
      }
      command = [sys.executable, *how, *arguments, *(joined if processes > 1 else [])]
      started.append(start(command, self.folder / f"{workdir}.{process}", **env))
    return wait(started)

  def seconds_since_strike(self, workdir: str, ended: list[Ended]) -> float:
    """From what happened to one process until the last one had ended."""
    return max(each.at for each in ended) - float((self.folder / f"{workdir}.struck").read_text())

  def metrics(self, workdir: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without timings."""
    lines = [
      json.loads(line)
      for line in (self.folder / workdir / "metrics.jsonl").read_text().splitlines()
    ]
    return [
      {k: v for k, v in line.items() if not k.startswith(("time/", "tokens_per_s/"))}
      for line in lines
    ]


def free_port() -> int:
  """Returns a port that nobody uses at the moment."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    return s.getsockname()[1]


def start(
  command: list[str], log: pathlib.Path, cwd: pathlib.Path = conftest.ROOT, **env: str
) -> tuple[subprocess.Popen, pathlib.Path]:
  """Starts a process of one device whose output goes to files beside `log`."""
  cached = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  streams = {"stdin": subprocess.DEVNULL}
  with open(f"{log}.out", "w") as out, open(f"{log}.err", "w") as err:
    environment = conftest.environment(1, **cached, **env)
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=err, **streams)
  return process, log


def wait(started: list[tuple[subprocess.Popen, pathlib.Path]], seconds: float = 400) -> list[Ended]:
  """How all of them ended; those that have not in so many seconds are killed, and the test fails."""
  deadline, at = time.time() + seconds, {}
  try:
    while len(at) < len(started):
      at |= {
        i: time.time()
        for i, (process, _) in enumerate(started)
        if i not in at and process.poll() is not None
      }
      assert time.time() < deadline, f"only {sorted(at)} of {len(started)} processes have ended"
      time.sleep(0.05)
  finally:
    for process, _ in started:
      process.kill()
      process.wait()
  texts = [
    [pathlib.Path(f"{log}.{kind}").read_text(errors="replace") for kind in ("out", "err")]
    for _, log in started
  ]
  return [
    Ended(process.returncode, *text, at[i])
    for i, ((process, _), text) in enumerate(zip(started, texts))
  ]


def errors(ended: Ended) -> list[str]:
  """The lines of stderr that are for a person: without what jax's C++ code logs at every start."""
  noise = ("[Gloo]", "W1", "W0", "I1", "I0", "WARNING: All log messages")
  return [line for line in ended.stderr.splitlines() if line and not line.startswith(noise)]
