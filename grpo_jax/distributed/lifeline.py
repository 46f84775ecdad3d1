"""Where one process of a run ends, all of them end, within seconds and with its error.

    with Lifeline():
      ...                     # the whole run, after jax.distributed.initialize

Every process holds a connection to process 0. The system closes it when a process ends, however it
ends, so a kill is noticed at once; a machine that is gone is noticed by keepalive after
KEEPALIVE_SECONDS. A process that is stopped, or a machine that hangs, is noticed when nothing has
come from it for SILENT_SECONDS; code that holds the interpreter for so long, in one call of C code
that does not let go of it, looks the same. An error that leaves the block is sent to all. The
others are then, as a rule, in a collective that waits for the one that is missing, which no Python
code can leave: so they print the line and end the process. jax would notice by its own heartbeats,
later, and say so in a page of C++ text.

The same connections compare, in passing, what all processes must have alike in each step
(`compare`).
"""

import contextlib
import functools
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import (
  distributed,
)  # the address of process 0, which jax has just reached, is not public

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError

KEEPALIVE_SECONDS = 25
BEAT_SECONDS = 3.0  # between two signs of life to process 0, and from it
# without one, after which a process counts as lost; jax waits longer (experiments/run.py)
SILENT_SECONDS = 45.0
CONNECT_SECONDS = 30
# What a process that was told of an error waits for its own main thread: most errors are raised on
# all of them.
GRACE_SECONDS = 2.0
NOTICE_SECONDS = 1.0  # until it is noticed that another process has gone
# process 0 ends after the others, which jax would tell in its own words that it is gone
LAST_SECONDS = 10.0
LONGEST = 2000  # characters of the line
INTERRUPTED = 130  # the exit code that a shell gives a program that SIGINT ended


class Lifeline:
  """Ends this process where another one of the run has ended; of a run of one process it is
  nothing.
  """

  def __init__(self) -> None:
    """Makes nothing yet."""
    self.index, self.several = jax.process_index(), jax.process_count() > 1
    self.failed = threading.Event()  # an error has left the block
    self.ending = threading.Event()  # another process has ended the run
    self.done: set[int] = set()  # the processes whose block has ended without an error
    self.connected: dict[
      int, socket.socket
    ] = {}  # by process: on process 0 to the others, elsewhere to process 0
    self.names: list[str] = []  # of the processes, for messages
    self.heard: dict[int, float] = {}  # when something came from each last
    self.place = "the start"  # what the run is doing, for messages
    self.count = 0  # of numbers that this process has compared
    self.compared: dict[
      int, dict[int, tuple[int, str]]
    ] = {}  # on process 0: those not known of all yet, by process
    self.lock = threading.Lock()  # of these

  def __enter__(self) -> "Lifeline":
    if not self.several:
      return self
    try:
      _connect(self)
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
    for connection in list(self.connected.values()):  # the threads may take one away meanwhile
      connection.close()

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
    if not self.several:
      return
    _current.remove(self)
    if error is None:
      _send(self, {"done": self.index})
      return
    # It may be that something failed because another process has gone, such as a collective or a
    # save.
    if self.ending.wait(NOTICE_SECONDS):
      # this process is being ended with that one's line, which says more
      time.sleep(2 * LAST_SECONDS)
    self.failed.set()
    code, text = told(error)
    _send(self, {"failed": self.index, "code": code, "text": text})
    _start(_end_soon, self, code)


_current: list[Lifeline] = []  # the one of this process; none where it is the only one


def begin(place: str) -> None:
  """Says what the run does from now on, such as "step 3", for the message of `compare`."""
  for line in _current:
    line.place = place


def compare(*trees: Any) -> None:
  """Ends the run where prompts are not the same on all processes, which call this equally often.

  No process waits for another one: process 0 is told the checksums of the others, and finds what
  differs.

  Args:
    *trees: of arrays; those that are not numpy's lie on the mesh and are left out.
  """
  for line in _current:
    line.count += 1
    number = checksum(trees)
    if line.index == 0:
      _compare(line, 0, line.count, number, line.place)
    else:
      _send(line, {"count": line.count, "number": number, "place": line.place})


def checksum(trees: Any) -> int:
  """Returns 32 bits of the numpy arrays in a tree."""
  found = 0
  for array in jax.tree.leaves(trees):
    if isinstance(array, np.ndarray):
      found = zlib.crc32(np.ascontiguousarray(array), found)
  return found


def settle() -> None:
  """Returns on process 0 when what all processes have compared until now is found equal, before it
  is saved.
  """
  deadline = time.monotonic() + LAST_SECONDS
  while any(line.compared for line in _current) and time.monotonic() < deadline:
    time.sleep(0.001)


def told(error: BaseException) -> tuple[int, str]:
  """Returns the exit code of a command that an error ends, and what the other processes are told."""
  if isinstance(error, KeyboardInterrupt):
    return INTERRUPTED, "interrupted"
  if isinstance(error, SettingError):
    return error.code, str(error)
  return 1, f"{type(error).__name__}: {error}"


def _start(function: Callable, *args: Any) -> None:
  threading.Thread(target=function, args=args, daemon=True).start()


def _connect(line: Lifeline) -> None:
  """Connects this process with process 0; every process calls it.

  Raises:
    OSError, hosts.Elsewhere: on all processes, where one cannot be reached.
  """
  server = hosts.together(_listen if line.index == 0 else lambda: None)
  port, secret = hosts.gather((server and server.getsockname()[1], secrets.token_hex(16)))[0]
  line.names = hosts.gather(f"host {line.index} (process {os.getpid()} on {socket.gethostname()})")
  if line.index == 0:
    line.connected = hosts.together(functools.partial(_accept, server, secret, len(line.names) - 1))
    server.close()
  else:
    address = distributed.global_state.coordinator_address.rpartition(":")[0].strip("[]")
    greeting = f"{secret} {line.index}\n"
    line.connected = hosts.together(functools.partial(_reach, (address, port), greeting))


def _listen() -> socket.socket:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)


def _accept(server: socket.socket, secret: str, others: int) -> dict[int, socket.socket]:
  """Returns the connections of all other processes, by process; closes those of strangers."""
  connected: dict[int, socket.socket] = {}
  server.settimeout(CONNECT_SECONDS)
  while len(connected) < others:
    connection, _ = server.accept()
    connection.settimeout(CONNECT_SECONDS)
    said, _, index = connection.makefile().readline(100).strip().partition(" ")
    if secrets.compare_digest(said.encode(), secret.encode()):
      connected[int(index)] = _kept_alive(connection)
    else:
      connection.close()
  return connected


def _reach(address: tuple[str, int], greeting: str) -> dict[int, socket.socket]:
  """Returns the connection to process 0."""
  connection = socket.create_connection(address, CONNECT_SECONDS)
  connection.sendall(greeting.encode())
  return {0: _kept_alive(connection)}


def _kept_alive(connection: socket.socket) -> socket.socket:
  """Returns the connection; the system notices a machine that is gone, after KEEPALIVE_SECONDS."""
  connection.settimeout(None)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  settings = {"TCP_KEEPIDLE": KEEPALIVE_SECONDS - 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
  for name, value in settings.items():
    if hasattr(socket, name):  # as Linux has them
      connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
  return connection


def _send(line: Lifeline, message: dict[str, Any], but: int | None = None) -> None:
  """Sends a message to process 0, or from it to all others."""
  for process, connection in list(line.connected.items()):
    if process != but:
      with contextlib.suppress(OSError):  # it is gone
        connection.sendall(json.dumps(message).encode() + b"\n")


def _beat(line: Lifeline) -> None:
  """Sends signs of life, which are empty lines, as long as this process lives."""
  while line.connected:
    time.sleep(BEAT_SECONDS)
    for connection in list(line.connected.values()):
      with contextlib.suppress(OSError):  # it is gone
        connection.sendall(b"\n")


def _compare(line: Lifeline, process: int, count: int, number: int, place: str) -> None:
  """Keeps what a process has said on process 0, and ends the run where that is not what process 0
  has.
  """
  with line.lock:
    said = line.compared.setdefault(count, {})
    said[process] = (number, place)
    wrong = [other for other in said if 0 in said and said[other] != said[0]]
    if len(said) == len(line.names) and not wrong:
      del line.compared[count]
  if wrong:
    (_, here), (_, there) = said[0], said[wrong[0]]
    text = (
      f"its prompts of {here} are not those of host 0: the order of the data is another one there, "
      "as by a shuffle "
      "without a seed or a listing of a folder in what data.name names; make it the same on all "
      "hosts"
      if here == there
      else f"it is at {there} where host 0 is at {here}: start all hosts by the same command, with the same code"
    )
    message = {"failed": wrong[0], "code": SettingError.code, "text": text, "now": True}
    _send(line, message)
    _start(_end, line, message)


def _watch(line: Lifeline) -> None:
  """Reads what comes until the connections are gone; ends the process where a run is over."""
  with selectors.DefaultSelector() as waiting:
    for process, connection in line.connected.items():
      waiting.register(connection, selectors.EVENT_READ, (process, bytearray()))
      line.heard[process] = time.monotonic()
    awake = time.monotonic()
    while waiting.get_map():
      ready, before, awake = waiting.select(NOTICE_SECONDS), awake, time.monotonic()
      # nothing has run here: what the others sent waits to be read
      if awake - before > NOTICE_SECONDS + BEAT_SECONDS:
        line.heard = dict.fromkeys(line.heard, awake)
      for key, _ in ready:
        process, read = key.data
        line.heard[process] = time.monotonic()
        try:
          read += (new := key.fileobj.recv(65536))
        except OSError:  # reset, or no answer to keepalive
          new = b""
        while b"\n" in read:
          said, _, rest = bytes(read).partition(b"\n")
          read[:] = rest
          if said:
            _hear(line, process, json.loads(said))
        if not new:
          waiting.unregister(key.fileobj)
          line.connected.pop(process, None)
          _lost(
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
          _lost(line, process, silent)
          line.connected.pop(process)


def _hear(line: Lifeline, sender: int, message: dict[str, Any]) -> None:
  """Does what a message asks for; process 0 hands it on to the others."""
  if "done" in message:
    line.done.add(message["done"])
    return
  if "count" in message:
    _compare(line, sender, message["count"], message["number"], message["place"])
    return
  if line.index == 0:
    _send(line, message, but=sender)
  _start(_end, line, message)


def _lost(line: Lifeline, process: int, text: str) -> None:
  """Ends the run where a process is gone that was neither done nor had an error."""
  if process in line.done or line.failed.is_set() or line.ending.is_set():
    return
  message = {"failed": process, "code": 1, "text": text, "now": True}
  _send(line, message)  # also to the one that is lost, which may be stopped and be continued
  _start(_end, line, message)


def _end(line: Lifeline, message: dict[str, Any]) -> None:
  """Prints the one line and ends this process, whatever its main thread is waiting for."""
  if not message.get("now") and line.failed.wait(GRACE_SECONDS):
    return  # this process has an error of its own, as a rule the same
  if line.ending.is_set():
    return
  line.ending.set()
  text = " ".join(f"{line.names[message['failed']]}: {message['text']}".split())
  with contextlib.suppress(OSError):
    os.write(2, f"error: {text[:LONGEST]}\n".encode(errors="replace"))
  _leave(line, message["code"])


def _end_soon(line: Lifeline, code: int) -> None:
  """Ends this process when its main thread has had the time to say what went wrong."""
  # also those of the others, whose collectives fail when this one's connections close
  time.sleep(2 * GRACE_SECONDS)
  _leave(line, code)


def _leave(line: Lifeline, code: int) -> None:
  """Ends this process, process 0 after the others: jax's service of all is there."""
  deadline = time.monotonic() + LAST_SECONDS
  while line.index == 0 and line.connected and time.monotonic() < deadline:
    time.sleep(0.05)
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(Exception):
      stream.flush()
  os._exit(code)
