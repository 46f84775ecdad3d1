"""Runs programs that nobody trusts in worker processes; this file has the run's end of their pipes.

A request and its reply are one line of JSON each. The run holds a `Process`; its program, such as
tokenizer/templates.py or rewards/algebra.py, calls `serving.serve`.
"""

import atexit
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent import futures
from typing import IO

from grpo_jax.aliases import Json

started: set[int] = set()  # ids of the running workers
_ROOT = pathlib.Path(__file__).parents[2]

Message = Json
Waiting = queue.SimpleQueue[tuple[futures.Future[Message], Message] | None]  # None: the last


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
      reply = json.loads(line)
      if "refused" in reply:  # the next request starts a process, which reads what was mended
        self.stop()
      return reply
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
    if (process := self.process) is not None:  # a thread that reads its end may forget it meanwhile
      _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
  """Kills a worker; SIGTERM comes first, upon which it kills its child, too."""
  process.terminate()
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(timeout=5.0)
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
    self.answered = False  # kept for whoever reads the replies: whether one was an answer
    self._waiting: Waiting = queue.SimpleQueue()
    self._started = False

  def submit(self, request: Message) -> futures.Future[Message]:
    """Returns what will be the reply to a request, see `Process.ask`."""
    if not self._started:
      self._started = True
      for process in self.processes:
        arguments = (process, self._waiting)  # not the pool, which can be forgotten
        threading.Thread(target=_answer, args=arguments, daemon=True).start()
    future: futures.Future[Message] = futures.Future()
    self._waiting.put((future, request))
    return future

  def ask_all(self, requests: Sequence[Message]) -> list[Message]:
    """Returns the replies to requests, in their order."""
    replies: list[futures.Future[Message]] = []
    try:
      replies.extend(map(self.submit, requests))
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

  def stop_when_forgotten(self) -> None:
    """Has the processes stopped once nothing refers to this pool and all requests are answered."""
    weakref.finalize(self, _end, self._waiting, len(self.processes)).atexit = False


def _answer(process: Process, waiting: Waiting) -> None:
  """Has a process reply to the waiting requests, one after the other, and stops it at the end."""
  while asked := waiting.get():
    future, request = asked
    if future.set_running_or_notify_cancel():
      try:
        future.set_result(process.ask(request))
      except BaseException as error:  # raised where the result is asked for
        future.set_exception(error)
  process.stop()


def _end(waiting: Waiting, count: int) -> None:
  """Tells the threads of a pool of `count` processes that nothing more will be asked."""
  for _ in range(count):
    waiting.put(None)


_shared: dict[tuple[str, str, int], tuple[str, Pool]] = {}  # with what its code was


def shared(module: str, argument: str, count: int, code: str = "") -> Pool:
  """Returns a pool of processes of a module with one argument, which all callers share.

  Args:
    module, argument: of each `Process`.
    count: of the processes.
    code: tells the contents of the files that the module reads. When it changes there is a new
      pool, and the old one ends as soon as nobody uses it.
  """
  key = (module, argument, count)
  known, pool = _shared.get(key, ("", None))
  if pool is None or known != code:
    pool = Pool([Process(module, argument) for _ in range(count)])
    pool.stop_when_forgotten()
    _shared[key] = (code, pool)
  return pool
