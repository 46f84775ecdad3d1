"""Answers a run's requests in a worker process, whose end of the pipes this file has.

    serve(answer, memory, seconds)

An untrusted computation could run for ever or fill the memory, and Python cannot interrupt either
inside one operation. So a child process with a memory limit computes, and a timer of the operating
system ends it when it has computed for too long. The child is a fork of the worker, which by then
has imported what it needs, so that replacing a child takes milliseconds. A request and its reply
are one line of JSON each.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

from grpo_jax.aliases import Json
from grpo_jax.errors import SettingError

PATIENCE = 10.0  # seconds that a reply may take on a busy machine, besides those of computing
DYING = 5.0  # seconds that a process may take to end after its pipes have closed
LONGEST_POLL = 3600.0  # seconds; the system counts milliseconds, at most 2^31 of them
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

Message = Json
Answer = Callable[[Message], Message]  # returns the reply to a request


def serve(
  answer: Answer,
  memory: int,
  seconds: float,
  patience: float = PATIENCE,
  files: bool = False,
) -> None:
  """Answers requests from the standard input until it ends; a request can end its own child only.

  Args:
    answer: returns the reply to a request. It runs in the child, where it may keep state from one
      request to the next.
    memory: the child's limit of address space, in bytes.
    seconds: the child's limit of computing time, of all threads together, for one request; 0: none.
    patience: seconds that a reply may take besides.
    files: whether it may write files.
  """
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  child = None
  for line in sys.stdin.buffer:
    child = child or _Child(answer, memory, seconds, patience, files)
    reply = child.ask(line)
    if not reply:
      reply, child = json.dumps({"error": child.stop()}).encode() + b"\n", None
    with contextlib.suppress(BrokenPipeError):  # the run was killed; its requests end here, too
      while reply:
        reply = reply[os.write(1, reply) :]
  if child:
    # The child ends at the end of its input; waiting for it adds its computing time to this
    # process's children.
    child.requests.close()
    os.waitpid(child.pid, 0)
    child.kill_programs()


@contextlib.contextmanager
def silent() -> Iterator[None]:
  """Drops what a block of code prints: the standard output is the pipe of the replies."""
  replies, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, 1)
  try:
    yield
  finally:
    sys.stdout.flush()
    os.dup2(replies, 1)
    os.close(replies)
    os.close(null)


def loaded(load: Callable[[], Answer], workers: str) -> Answer:
  """Returns the function that `load` makes; if it fails, one that tells why: {"refused": why}.

  The run ends this process after such a reply, see `worker.Process.receive`.

  Args:
    load: imports what a user wrote; what it prints is dropped.
    workers: the setting that asks for this process.
  """
  try:
    with silent():
      return load()
  except (Exception, SystemExit) as error:
    refused = {"refused": f"{error or type(error).__name__}, in a process of {workers}"}
    return lambda _: refused


def accepted(reply: Message) -> Message:
  """Returns a reply, unless it is {"refused": why}, which ends the run with the reason.

  Raises:
    SettingError: it is: its process could not load the user's code, or a reward ends the run.
  """
  if "refused" in reply:
    raise SettingError(reply["refused"])
  return reply


class _Child:
  """Forks this process and lets the fork answer requests within its limits.

  It leads a process group of its own, by which the programs that it starts are ended with it.
  """

  def __init__(
    self,
    answer: Answer,
    memory: int,
    seconds: float,
    patience: float,
    files: bool,
  ):
    self.memory, self.seconds, self.patience = memory, seconds, patience
    self.dying = False  # its end of the replies is closed
    requests, to_child = os.pipe()
    from_child, replies = os.pipe()
    worker = os.getpid()
    self.pid = os.fork()
    if self.pid == 0:
      try:
        _die_with(worker)
        os.close(to_child)
        os.close(from_child)
        _limit(memory, files)
        _answer(answer, seconds, requests, replies)
      finally:
        os._exit(1)
    with contextlib.suppress(OSError):  # it has ended already
      os.setpgid(self.pid, self.pid)
    signal.signal(signal.SIGTERM, self._end_worker)
    os.close(requests)
    os.close(replies)
    self.requests, self.replies = open(to_child, "wb"), from_child

  def ask(self, line: bytes) -> bytes:
    """Returns the reply, a line; b"" if the child gave none, after which it must be stopped.

    It also gives none if the run closes its end of the standard input, as a killed run does.
    """
    with contextlib.suppress(BrokenPipeError):
      self.requests.write(line)
      self.requests.flush()
    poll = select.poll()
    poll.register(self.replies, select.POLLIN)
    poll.register(0, select.POLLIN)  # its end; no request comes before the reply
    reply, end = b"", time.monotonic() + self.seconds + self.patience
    while not reply.endswith(b"\n"):
      left = max(end - time.monotonic(), 0)
      ready = dict(poll.poll(1000 * min(left, LONGEST_POLL)))
      if ready.get(0, 0) & ~select.POLLIN or not (ready or left):
        return b""
      if self.replies in ready:
        chunk = os.read(self.replies, 1 << 16)
        if not chunk:
          self.dying = True
          return b""
        reply += chunk
    return reply

  def kill_programs(self) -> None:
    """Kills what is left of the child's group."""
    with contextlib.suppress(OSError):
      os.killpg(self.pid, signal.SIGKILL)

  def _end_worker(self, *_: object) -> None:
    """Ends this worker at once, on SIGTERM."""
    self.kill_programs()
    os._exit(1)

  def stop(self) -> str:
    """Ends the child with its programs and returns the reason why it gave no reply."""
    with contextlib.suppress(BrokenPipeError):
      self.requests.close()
    os.close(self.replies)
    ended, status = os.waitpid(self.pid, os.WNOHANG)
    end = time.monotonic() + (DYING if self.dying else 0)
    while not ended and time.monotonic() < end:
      time.sleep(0.01)
      ended, status = os.waitpid(self.pid, os.WNOHANG)
    if not ended:
      os.kill(self.pid, signal.SIGKILL)
      os.waitpid(self.pid, 0)
    self.kill_programs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the child's number may be used again
    if not ended:
      return f"takes more than {self.seconds + self.patience:g} seconds"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
      return f"computes for more than {self.seconds:g} seconds"
    return (
      f"ended its process with code {code}, as one that needs more than {self.memory // 1024**2} "
      "MB of memory"
    )


def _die_with(parent: int) -> None:
  """Makes this process end when its parent is killed, on Linux."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
  if os.getppid() != parent:  # it was killed before that
    os._exit(1)


def _limit(memory: int, files: bool) -> None:
  """Limits this process's memory, and takes the standard streams and perhaps files from it."""
  null = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):  # text that a library prints must not look like a reply
    os.dup2(null, fd)
  resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
  if not files:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(answer: Answer, seconds: float, requests: int, replies: int) -> None:
  """Answers each request; a timer of computing time, not of waiting, ends the process."""
  with open(requests, "rb") as lines:
    for line in lines:
      signal.setitimer(signal.ITIMER_PROF, seconds)
      reply = json.dumps(answer(json.loads(line))).encode() + b"\n"
      signal.setitimer(signal.ITIMER_PROF, 0)
      while reply:
        reply = reply[os.write(replies, reply) :]
  os._exit(0)
