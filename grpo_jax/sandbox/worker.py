"""Runs programs that nobody trusts in worker processes; this file has both ends of their pipes.

An untrusted computation could run for ever or fill the memory, and Python cannot interrupt either
inside one operation. So a child process with a memory limit computes, and a timer of the operating
system ends it when it has computed for too long. The child is a fork of the worker, which by then
has imported what it needs and never imports jax, so that replacing a child takes milliseconds.

A request and its reply are one line of JSON each. A program (tokenizer/templates.py,
rewards/algebra.py) calls `serve`; the run holds a `Process`.
"""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import IO

from grpo_jax.aliases import Json

PATIENCE = 10.0  # seconds that a reply may take on a busy machine, besides those of computing
LONGEST_POLL = 3600.0  # seconds; the system counts milliseconds, at most 2^31 of them
started: set[int] = set()  # ids of the running workers
_ROOT = pathlib.Path(__file__).parents[2]

Message = Json


class Process:
  """Runs a module of this project in a process that starts when needed, again if it has ended."""

  def __init__(self, module: str, *arguments: str):
    """Makes a process, not started yet, for a module such as "grpo_jax.tokenizer.templates".

    The module finds the arguments in sys.argv.
    """
    self.module, self.arguments = module, arguments
    self.process: subprocess.Popen[bytes] | None = None
    atexit.register(self.stop)

  def start(self) -> None:
    """Starts the process if it is not running.

    It gets a session of its own, so that Ctrl-C reaches the run alone.
    """
    if self.process is not None:
      return
    # -P: the program must not import modules of the working directory
    command = [sys.executable, "-P", "-m", self.module, *self.arguments]
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

  @property
  def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output of the running process."""
    assert self.process and self.process.stdin and self.process.stdout, (
      f"{self.module}: not started"
    )
    return self.process.stdin, self.process.stdout

  def ask(self, request: Message) -> Message:
    """Returns the reply to a request, or {"error": the reason why there is none}."""
    self.send(request)
    return self.receive()

  def send(self, request: Message) -> None:
    """Sends a request; its reply must be received before the next one is sent."""
    self.start()
    requests, _ = self._pipes
    with contextlib.suppress(OSError):  # the process has ended, which `receive` reports
      requests.write(json.dumps(request).encode() + b"\n")
      requests.flush()

  def receive(self) -> Message:
    """Returns the reply to the last request, or {"error": the reason why there is none}."""
    try:
      line = self._pipes[1].readline()
    except BaseException:  # an interrupt: the pending reply must not answer the next request
      self.stop()
      raise
    if line.endswith(b"\n"):
      return json.loads(line)
    return {"error": f"ended its process with code {self.stop()}"}

  def fileno(self) -> int:
    """Returns the file descriptor for `select`: readable on a reply or the end of the process."""
    return self._pipes[1].fileno()

  def stop(self, patience: float = 0.5) -> int | None:
    """Ends the process with its children and returns its exit code, or None if none is running.

    Args:
      patience: seconds that it may take to end by itself.
    """
    if self.process is None:
      return None
    process, (requests, replies) = self.process, self._pipes
    self.process = None
    with contextlib.suppress(OSError):  # the process has not read all of its input
      requests.close()
    # an idle process ends when its input does
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(timeout=patience)
    _kill(process)
    replies.close()  # after its end, for which a thread of a `Pool` may wait here
    started.discard(process.pid)
    return process.wait()

  def kill(self) -> None:
    """Ends the process with its children, at once; who waits for a reply gets an error."""
    if self.process is not None:
      _kill(self.process)


def _kill(process: subprocess.Popen[bytes]) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


class Pool:
  """Asks several processes at the same time, each for one reply at a time.

  A process gets the next request as soon as it has replied, so that a slow request delays no other
  process. A thread waits for each process, and none of them keeps Python from ending.
  """

  def __init__(self, processes: Sequence[Process]):
    """Makes a pool of processes of one program; they are started when they are asked."""
    self.processes = list(processes)
    self._waiting: queue.SimpleQueue[tuple[futures.Future[Message], Message]] = queue.SimpleQueue()
    self._started = False

  def submit(self, request: Message) -> futures.Future[Message]:
    """Returns what will be the reply to a request, see `Process.ask`."""
    if not self._started:
      self._started = True
      for process in self.processes:
        threading.Thread(target=self._answer, args=(process,), daemon=True).start()
    future: futures.Future[Message] = futures.Future()
    self._waiting.put((future, request))
    return future

  def ask_all(self, requests: Sequence[Message]) -> list[Message]:
    """Returns the replies to requests, in their order."""
    replies = [self.submit(request) for request in requests]
    try:
      return [reply.result() for reply in replies]
    except BaseException:
      self.drop(replies)
      raise

  def drop(self, replies: Iterable[futures.Future[Message]]) -> None:
    """Gives replies up, after an interrupt; processes that are asked for one are ended."""
    left = {reply for reply in replies if not reply.cancel()}
    while left := futures.wait(left, timeout=0.0).not_done:
      for process in self.processes:
        process.kill()  # hundreds of them may hang
      futures.wait(left, timeout=0.1)

  def _answer(self, process: Process) -> None:
    """Has a process reply to the waiting requests, one after the other."""
    while True:
      future, request = self._waiting.get()
      if future.set_running_or_notify_cancel():
        try:
          future.set_result(process.ask(request))
        except BaseException as error:  # raised where the result is asked for
          future.set_exception(error)


@functools.cache
def shared(module: str, argument: str, count: int) -> Pool:
  """Returns a pool of processes of a module with one argument, which all callers share."""
  return Pool([Process(module, argument) for _ in range(count)])


def serve(
  answer: Callable[[Message], Message],
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
    seconds: the child's limit of computing time for one request.
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


class _Child:
  """A fork of this process that answers requests within its limits."""

  def __init__(
    self,
    answer: Callable[[Message], Message],
    memory: int,
    seconds: float,
    patience: float,
    files: bool,
  ):
    self.memory, self.seconds, self.patience = memory, seconds, patience
    requests, to_child = os.pipe()
    from_child, replies = os.pipe()
    self.pid = os.fork()
    if self.pid == 0:
      try:
        os.close(to_child)
        os.close(from_child)
        _limit(memory, files)
        _answer(answer, seconds, requests, replies)
      finally:
        os._exit(1)
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
    poll.register(0, 0)  # only that it was closed; input that waits is no event
    reply, end = b"", time.monotonic() + self.seconds + self.patience
    while not reply.endswith(b"\n"):
      left = max(end - time.monotonic(), 0)
      ready = [fd for fd, _ in poll.poll(1000 * min(left, LONGEST_POLL))]
      if 0 in ready or not (ready or left):
        return b""
      if ready:
        chunk = os.read(self.replies, 1 << 16)
        if not chunk:
          return b""
        reply += chunk
    return reply

  def stop(self) -> str:
    """Ends the child and returns the reason why it gave no reply."""
    with contextlib.suppress(BrokenPipeError):
      self.requests.close()
    os.close(self.replies)
    ended, status = os.waitpid(self.pid, os.WNOHANG)
    if not ended:
      time.sleep(0.01)  # the pipe of a dying child closes a little before the child has ended
      ended, status = os.waitpid(self.pid, os.WNOHANG)
    if not ended:
      os.kill(self.pid, signal.SIGKILL)
      os.waitpid(self.pid, 0)
      return f"takes more than {self.seconds + self.patience:g} seconds"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
      return f"computes for more than {self.seconds:g} seconds"
    return (
      f"ended its process with code {code}, as one that needs more than {self.memory // 1024**2} "
      "MB of memory"
    )


def _limit(memory: int, files: bool) -> None:
  """Limits this process's memory, and takes the standard streams and perhaps files from it."""
  null = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):  # text that a library prints must not look like a reply
    os.dup2(null, fd)
  resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
  if not files:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(
  answer: Callable[[Message], Message], seconds: float, requests: int, replies: int
) -> None:
  """Answers each request; a timer of computing time, not of waiting, ends the process."""
  with open(requests, "rb") as lines:
    for line in lines:
      signal.setitimer(signal.ITIMER_PROF, seconds)
      reply = json.dumps(answer(json.loads(line))).encode() + b"\n"
      signal.setitimer(signal.ITIMER_PROF, 0)
      while reply:
        reply = reply[os.write(replies, reply) :]
  os._exit(0)
