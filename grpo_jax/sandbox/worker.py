"""Programs in processes of their own, for what nobody trusts: both ends of the pipe to them.

What is computed there could run for ever or fill the memory, and inside one operation neither can
be stopped by Python. So it is computed by a child with a limit of memory, which a timer of the
operating system ends when it has computed for too long. The child is a fork of the program, which
has imported what it needs by then and no jax: to replace one that was ended takes milliseconds.

A request and its reply are a line of JSON each. A program (tokenizer/templates.py,
rewards/algebra.py) calls `serve`; the run has a `Process`.
"""

import atexit
import collections
import contextlib
import json
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# seconds, beyond those of computing, that an answer may take on a machine that is busy
PATIENCE = 10.0
started: set[int] = set()  # the ids of the processes that run
_ROOT = pathlib.Path(__file__).parents[2]


class Process:
  """A program of this project in a process of its own, started when it is needed, and again after
  it has ended.
  """

  def __init__(self, module: str):
    """Makes a process that is not started yet.

    Args:
      module: of the program, as in "grpo_jax.tokenizer.templates".
    """
    self.module = module
    self.process: subprocess.Popen | None = None
    atexit.register(self.stop)

  def start(self) -> None:
    """Starts it, where it is not running, in a session of its own: an interrupt from the keyboard
    is for the run.
    """
    if self.process is not None:
      return
    command = [
      sys.executable,
      "-P",
      "-m",
      self.module,
    ]  # -P: modules of the working directory are not for it
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    self.process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    started.add(self.process.pid)

  def ask(self, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the reply to a request, or {"error": why there is none}."""
    self.send(request)
    return self.receive()

  def send(self, request: dict[str, Any]) -> None:
    """Sends a request, whose reply is to be received before the next one."""
    self.start()
    with contextlib.suppress(OSError):  # it has ended: `receive` says so
      self.process.stdin.write(json.dumps(request).encode() + b"\n")
      self.process.stdin.flush()

  def receive(self) -> dict[str, Any]:
    """Returns the reply to what was sent, or {"error": why there is none}."""
    try:
      line = self.process.stdout.readline()
    except BaseException:  # an interrupt: the reply that is on its way is not the next one's
      self.stop()
      raise
    return (
      json.loads(line)
      if line.endswith(b"\n")
      else {"error": f"ended its process with code {self.stop()}"}
    )

  def fileno(self) -> int:
    """Returns what `select` waits for: a reply, or the end of the process."""
    return self.process.stdout.fileno()

  def stop(self) -> int | None:
    """Ends the process with its children and returns its exit code; None where it is not running."""
    process, self.process = self.process, None
    if process is None:
      return None
    for pipe in (process.stdin, process.stdout):
      with contextlib.suppress(OSError):  # what it did not take any more
        pipe.close()
    # its input has ended, and so does an idle one
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(timeout=0.5)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    started.discard(process.pid)
    return process.wait()


def ask_all(
  processes: Sequence[Process], requests: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Returns the replies to requests, in their order; see `Process.ask`.

  Each process has one request at a time and gets the next when it has replied: what takes long
  holds up no other process.
  """
  replies: list[dict[str, Any]] = [{} for _ in requests]
  waiting, busy, free = collections.deque(enumerate(requests)), {}, list(processes)
  try:
    while waiting or busy:
      while waiting and free:
        (place, request), process = waiting.popleft(), free.pop()
        process.send(request)
        busy[process.fileno()] = place, process
      poll = select.poll()
      for number in busy:
        poll.register(number, select.POLLIN)
      for number, _ in poll.poll():
        place, process = busy.pop(number)
        replies[place] = process.receive()
        free.append(process)
  except BaseException:  # an interrupt: the replies that are on their way are to nothing
    for _, process in busy.values():
      process.stop()
    raise
  return replies


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], memory: int, seconds: float) -> None:
  """Answers the requests that come on the standard input until it ends. No request is the end of
  more than its child.

  Args:
    answer: the reply to a request; it runs in the child and keeps there what it likes from one
      request to the next.
    memory: bytes of address space that the child may have.
    seconds: that the child may compute for one request.
  """
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  child = None
  for line in sys.stdin.buffer:
    child = child or _Child(answer, memory, seconds)
    reply = child.ask(line)
    if not reply:
      reply, child = json.dumps({"error": child.why()}).encode() + b"\n", None
    while reply:
      reply = reply[os.write(1, reply) :]
  if child:
    # it ends when it reads that; what it computed is then of this process's children
    child.requests.close()
    os.waitpid(child.pid, 0)


class _Child:
  """A fork of this process that answers, within its limits."""

  def __init__(self, answer: Callable, memory: int, seconds: float):
    self.memory, self.seconds = memory, seconds
    requests, to_child = os.pipe()
    from_child, replies = os.pipe()
    self.pid = os.fork()
    if self.pid == 0:
      try:
        os.close(to_child)
        os.close(from_child)
        _limit(memory)
        _answer(answer, seconds, requests, replies)
      finally:
        os._exit(1)
    os.close(requests)
    os.close(replies)
    self.requests, self.replies = open(to_child, "wb"), from_child

  def ask(self, line: bytes) -> bytes:
    """Returns the reply, a line; b"" where it gives none, and has ended or is to be ended."""
    with contextlib.suppress(BrokenPipeError):
      self.requests.write(line)
      self.requests.flush()
    reply, end = b"", time.monotonic() + self.seconds + PATIENCE
    while not reply.endswith(b"\n"):
      ready, _, _ = select.select([self.replies], [], [], max(end - time.monotonic(), 0))
      some = os.read(self.replies, 1 << 16) if ready else b""
      if not some:
        return b""
      reply += some
    return reply

  def why(self) -> str:
    """Ends it and returns why it gave no reply."""
    with contextlib.suppress(BrokenPipeError):
      self.requests.close()
    os.close(self.replies)
    ended, status = os.waitpid(self.pid, os.WNOHANG)
    if not ended:
      time.sleep(0.01)  # its pipe closes before it has quite ended
      ended, status = os.waitpid(self.pid, os.WNOHANG)
    if not ended:
      os.kill(self.pid, signal.SIGKILL)
      os.waitpid(self.pid, 0)
      return f"takes more than {self.seconds + PATIENCE:g} seconds"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
      return f"computes for more than {self.seconds:g} seconds"
    return (
      f"ended its process with code {code}, as one that needs more than {self.memory // 1024**2} "
      "MB of memory"
    )


def _limit(memory: int) -> None:
  """Leaves this process so much memory, no standard input or output (what a library prints is no
  reply), no writing.
  """
  nothing = os.open(os.devnull, os.O_RDWR)
  for each in (0, 1, 2):
    os.dup2(nothing, each)
  resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(answer: Callable, seconds: float, requests: int, replies: int) -> None:
  """Replies to each request; the timer ends the process, whatever it is doing, and counts no
  waiting.
  """
  with open(requests, "rb") as lines:
    for line in lines:
      signal.setitimer(signal.ITIMER_PROF, seconds)
      reply = json.dumps(answer(json.loads(line))).encode() + b"\n"
      signal.setitimer(signal.ITIMER_PROF, 0)
      while reply:
        reply = reply[os.write(replies, reply) :]
  os._exit(0)
