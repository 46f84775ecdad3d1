"""Ends all processes of a run when one of them ends, within seconds and with its error.

    with Lifeline():
      ...                     # the whole run, after jax.distributed.initialize

Every process holds a connection to process 0, which the system closes however a process ends, so
that a kill is noticed at once. Keepalive notices a lost machine (connections.py). A stopped
process or a hanging machine is noticed when it has sent nothing for SILENT_SECONDS; a call of C
code that holds the interpreter for so long looks the same. An error that leaves the block is sent
to all. The other processes then usually wait for the missing one in a collective, which no Python
code can leave, so they print the line and end themselves. jax's own heartbeats would notice later,
and print a page of C++ text.

The same connections compare the prompts of each step between processes (`compare`).
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed import connections, hosts
from grpo_jax.errors import GrpoError, TrainingError, out_of_memory

BEAT_SECONDS = 3.0  # between two signs of life, from process 0 and to it
SILENT_SECONDS = (
  45.0  # until a silent process counts as lost; jax waits longer (experiments/run.py)
)
GRACE_SECONDS = 2.0  # to wait for this process's own error, since most are raised on all processes
NOTICE_SECONDS = 1.0  # until the end of another process is noticed
LAST_SECONDS = 10.0  # process 0 ends last: jax tells the others in its own words that it is gone
LONGEST = 2000  # characters of the line
INTERRUPTED = 130  # the exit code that a shell gives a program that SIGINT ended

Message = Json


class Lifeline:
  """Ends this process when another one of the run has ended; does nothing if there is no other."""

  def __init__(self) -> None:
    """Makes a lifeline that is not connected yet."""
    self.index, self.several = jax.process_index(), jax.process_count() > 1
    self.failed = threading.Event()  # an error has left the block
    self.ending = threading.Event()  # another process has ended the run
    self.done: set[int] = set()  # the processes whose block has ended without an error
    # by process: all others on process 0, process 0 elsewhere
    self.connected: dict[int, socket.socket] = {}
    self.names: list[str] = []  # of the processes, for messages
    self.heard: dict[int, float] = {}  # when each process last sent something
    self.place = "the start"  # what the run is doing, for messages
    self.count = 0  # comparisons that this process has made
    # On process 0, comparisons that some process has not made yet: count -> process -> (checksum,
    # place).
    self.compared: dict[int, dict[int, tuple[int, str]]] = {}
    self.lock = threading.Lock()  # for `compared`

  def __enter__(self) -> "Lifeline":
    if not self.several:
      return self
    try:
      self.connected, self.names = connections.connect(self.index)
    except (OSError, hosts.Elsewhere) as error:
      self.several = False
      if self.index == 0:
        print(
          f"warning: no connection between hosts ({error}); one that dies is noticed later, by jax",
          flush=True,
        )
      return self
    # a child that outlives this process must not hold connections
    os.register_at_fork(after_in_child=self._close)
    _current.append(self)
    _start(_watch, self)
    _start(_beat, self)
    return self

  def _close(self) -> None:
    for connection in list(self.connected.values()):  # a copy: threads may remove connections
      connection.close()

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    if not self.several:
      return
    _current.remove(self)
    if error is None:
      _send(self, {"done": self.index})
      return
    # A collective or a save may have failed because another process is gone.
    if self.ending.wait(NOTICE_SECONDS):
      time.sleep(2 * LAST_SECONDS)  # this process is being ended with that one's line, a better one
    self.failed.set()
    code, text = exit_code_and_text(error)
    _send(self, {"failed": self.index, "code": code, "text": text})
    _start(_end_soon, self, code)


_current: list[Lifeline] = []  # the connected lifeline of this process, if any


def begin(place: str) -> None:
  """Sets what the run does from now on, such as "step 3", for the messages of `compare`."""
  for line in _current:
    line.place = place


def compare(*trees: Any) -> None:
  """Ends the run if the numpy arrays of `trees` differ between processes.

  All processes must call this equally often. None waits for another: process 0 receives the
  checksums of the others and compares them. Arrays of jax, which lie on the mesh, are left out.
  """
  for line in _current:
    line.count += 1
    number = checksum(trees)
    if line.index == 0:
      _compare(line, 0, line.count, number, line.place)
    else:
      _send(line, {"count": line.count, "number": number, "place": line.place})


def checksum(trees: Any) -> int:
  """Returns the CRC-32 of the numpy arrays in a tree."""
  value = 0
  for array in jax.tree.leaves(trees):
    if isinstance(array, np.ndarray):
      value = zlib.crc32(array.tobytes(), value)
  return value


def settle() -> None:
  """Waits on process 0 until all comparisons so far are complete; called before a save."""
  deadline = time.monotonic() + LAST_SECONDS
  while any(line.compared for line in _current) and time.monotonic() < deadline:
    time.sleep(0.001)


def exit_code_and_text(error: BaseException) -> tuple[int, str]:
  """Returns the exit code of a command that ends with this error, and its text for other hosts."""
  if isinstance(error, KeyboardInterrupt):
    return INTERRUPTED, "interrupted"
  if isinstance(error, GrpoError):
    return error.code, str(error)
  if line := out_of_memory(error):
    return GrpoError.code, line
  return 1, f"{type(error).__name__}: {error}"


def _start(function: Callable[..., None], *args: object) -> None:
  threading.Thread(target=function, args=args, daemon=True).start()


def _send(line: Lifeline, message: Message, but: int | None = None) -> None:
  """Sends a message to process 0, or from process 0 to all others except `but`."""
  for process, connection in list(line.connected.items()):
    if process != but:
      with contextlib.suppress(OSError):  # it is gone
        connection.sendall(json.dumps(message).encode() + b"\n")


def _beat(line: Lifeline) -> None:
  """Sends empty lines as signs of life while this process is connected."""
  while line.connected:
    time.sleep(BEAT_SECONDS)
    for connection in list(line.connected.values()):
      with contextlib.suppress(OSError):  # it is gone
        connection.sendall(b"\n")


def _compare(line: Lifeline, process: int, count: int, number: int, place: str) -> None:
  """Compares the checksum of a process with that of process 0, on process 0, and ends the run."""
  with line.lock:
    sent = line.compared.setdefault(count, {})
    sent[process] = (number, place)
    wrong = [other for other in sent if 0 in sent and sent[other] != sent[0]]
    if len(sent) == len(line.names) and not wrong:
      del line.compared[count]
  if wrong:
    (_, here), (_, there) = sent[0], sent[wrong[0]]
    if here == there:
      text = (
        f"its prompts of {here} are not those of host 0: the order of the data differs there, as "
        "after a shuffle without a seed or a listing of a folder in what data.name names; make it "
        "the same on all hosts"
      )
    else:
      text = (
        f"it is at {there} while host 0 is at {here}: start all hosts by the same command, with "
        "the same code"
      )
    _end_all(line, {"failed": wrong[0], "code": TrainingError.code, "text": text, "now": True})


def _watch(line: Lifeline) -> None:
  """Reads messages until all connections are gone, and ends this process when the run is over."""
  with selectors.DefaultSelector() as waiting:
    for process, connection in line.connected.items():
      waiting.register(connection, selectors.EVENT_READ, (process, connection, bytearray()))
      line.heard[process] = time.monotonic()
    awake = time.monotonic()
    while waiting.get_map():
      ready, before, awake = waiting.select(NOTICE_SECONDS), awake, time.monotonic()
      if awake - before > NOTICE_SECONDS + BEAT_SECONDS:
        # This process was stopped: what the others sent meanwhile is still to be read.
        line.heard = dict.fromkeys(line.heard, awake)
      for key, _ in ready:
        process, connection, unread = key.data
        line.heard[process] = time.monotonic()
        try:
          unread += (new := connection.recv(65536))
        except OSError:  # reset, or no answer to keepalive
          new = b""
        _hear_lines(line, process, unread)
        if not new:
          waiting.unregister(connection)
          line.connected.pop(process, None)
          _lose(
            line,
            process,
            "it is gone without a word: killed, out of memory, or its machine or network is lost",
          )
      for process in list(line.connected):
        if awake - line.heard[process] > SILENT_SECONDS:
          silent = (
            f"it has not answered for {SILENT_SECONDS:.0f} s: stopped, or its machine or network "
            "is lost"
          )
          _lose(line, process, silent)
          line.connected.pop(process)


def _hear_lines(line: Lifeline, sender: int, unread: bytearray) -> None:
  """Handles the messages in `unread` and leaves what follows the last complete line there."""
  *messages, rest = bytes(unread).split(b"\n")
  unread[:] = rest
  for message in filter(None, messages):
    _hear(line, sender, json.loads(message))


def _hear(line: Lifeline, sender: int, message: Message) -> None:
  """Does what a message asks for; process 0 passes it on to the others."""
  if "done" in message:
    line.done.add(message["done"])
    return
  if "count" in message:
    _compare(line, sender, message["count"], message["number"], message["place"])
    return
  if line.index == 0:
    _send(line, message, but=sender)
  _start(_end, line, message)


def _lose(line: Lifeline, process: int, text: str) -> None:
  """Ends the run if a process is gone that was neither done nor had an error."""
  if process in line.done or line.failed.is_set() or line.ending.is_set():
    return
  _end_all(line, {"failed": process, "code": 1, "text": text, "now": True})


def _end_all(line: Lifeline, message: Message) -> None:
  """Ends every process of the run; a stopped one reads the message if it is ever continued."""
  _send(line, message)
  _start(_end, line, message)


def _end(line: Lifeline, message: Message) -> None:
  """Prints one line and ends this process, whatever its main thread is waiting for."""
  if not message.get("now") and line.failed.wait(GRACE_SECONDS):
    return  # this process has an error of its own, usually the same
  if line.ending.is_set():
    return
  line.ending.set()
  text = " ".join(f"{line.names[message['failed']]}: {message['text']}".split())
  with contextlib.suppress(OSError):
    os.write(2, f"error: {text[:LONGEST]}\n".encode(errors="replace"))
  _leave(line, message["code"])


def _end_soon(line: Lifeline, code: int) -> None:
  """Ends this process once its main thread, and those of the others, had time to print the error.

  The collectives of the others fail as soon as this process closes its connections.
  """
  time.sleep(2 * GRACE_SECONDS)
  _leave(line, code)


def _leave(line: Lifeline, code: int) -> None:
  """Ends this process; process 0, which runs jax's service for all, waits for the others."""
  deadline = time.monotonic() + LAST_SECONDS
  while line.index == 0 and line.connected and time.monotonic() < deadline:
    time.sleep(0.05)
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(Exception):
      stream.flush()
  os._exit(code)
