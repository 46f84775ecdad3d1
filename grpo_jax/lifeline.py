"""Where one process of a run ends, all of them end, within seconds and with its error.

    with Lifeline():
      ...                     # the whole run, after jax.distributed.initialize

Every process holds a connection to process 0. The system closes it when a process ends, however it ends, so a kill is
noticed at once; a machine that is gone is noticed by keepalive after KEEPALIVE_SECONDS. An error that leaves the block
is sent to all. The others are then, as a rule, in a collective that waits for the one that is missing, which no Python
code can leave: so they print the line and end the process. jax would notice by its own heartbeats, later, and say so in
a page of C++ text.
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
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed  # the address of process 0, which jax has just reached, is not public

from grpo_jax import hosts
from grpo_jax.errors import SettingError

KEEPALIVE_SECONDS = 25
CONNECT_SECONDS = 30
# What a process that was told of an error waits for its own main thread: most errors are raised on all of them.
GRACE_SECONDS = 2.0
NOTICE_SECONDS = 1.0  # until it is noticed that another process has gone
LAST_SECONDS = 10.0  # process 0 ends after the others, which jax would tell in its own words that it is gone
LONGEST = 2000  # characters of the line
INTERRUPTED = 130  # the exit code that a shell gives a program that SIGINT ended


class Lifeline:
  """Ends this process where another one of the run has ended; of a run of one process it is nothing."""

  def __init__(self) -> None:
    """Makes nothing yet."""
    self.index, self.several = jax.process_index(), jax.process_count() > 1
    self.failed = threading.Event()  # an error has left the block
    self.ending = threading.Event()  # another process has ended the run
    self.done: set[int] = set()  # the processes whose block has ended without an error
    self.connected: dict[int, socket.socket] = {}  # by process: on process 0 to the others, elsewhere to process 0
    self.names: list[str] = []  # of the processes, for messages

  def __enter__(self) -> "Lifeline":
    if not self.several:
      return self
    try:
      _connect(self)
    except (OSError, hosts.Elsewhere) as error:
      self.several = False
      if self.index == 0:
        print(f"warning: no connection between hosts ({error}); one that dies is noticed later, by jax", flush=True)
      return self
    os.register_at_fork(after_in_child=self._close)  # a child that outlives this process must not hold connections
    _start(_watch, self)
    return self

  def _close(self) -> None:
    for connection in self.connected.values():
      connection.close()

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
    if not self.several:
      return
    if error is None:
      _send(self, {"done": self.index})
      return
    # It may be that something failed because another process has gone, such as a collective or a save.
    if self.ending.wait(NOTICE_SECONDS):
      time.sleep(2 * LAST_SECONDS)  # this process is being ended with that one's line, which says more
    self.failed.set()
    code, text = told(error)
    _send(self, {"failed": self.index, "code": code, "text": text})
    _start(_end_soon, self, code)


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


def _watch(line: Lifeline) -> None:
  """Reads what comes until the connections are gone; ends the process where a run is over."""
  with selectors.DefaultSelector() as waiting:
    for process, connection in line.connected.items():
      waiting.register(connection, selectors.EVENT_READ, (process, bytearray()))
    while waiting.get_map():
      for key, _ in waiting.select():
        process, read = key.data
        try:
          read += (new := key.fileobj.recv(65536))
        except OSError:  # reset, or no answer to keepalive
          new = b""
        while b"\n" in read:
          said, _, rest = bytes(read).partition(b"\n")
          read[:] = rest
          _hear(line, process, json.loads(said))
        if not new:
          waiting.unregister(key.fileobj)
          del line.connected[process]
          _lost(line, process)


def _hear(line: Lifeline, sender: int, message: dict[str, Any]) -> None:
  """Does what a message asks for; process 0 hands it on to the others."""
  if "done" in message:
    line.done.add(message["done"])
    return
  if line.index == 0:
    _send(line, message, but=sender)
  _start(_end, line, message)


def _lost(line: Lifeline, process: int) -> None:
  """Ends the run where a process is gone that was neither done nor had an error."""
  if process in line.done or line.failed.is_set() or line.ending.is_set():
    return
  text = "it is gone without a word: killed, out of memory, or its machine or network is lost"
  message = {"failed": process, "code": 1, "text": text, "lost": True}
  if line.index == 0:
    _send(line, message)
  _start(_end, line, message)


def _end(line: Lifeline, message: dict[str, Any]) -> None:
  """Prints the one line and ends this process, whatever its main thread is waiting for."""
  if not message.get("lost") and line.failed.wait(GRACE_SECONDS):
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
  time.sleep(2 * GRACE_SECONDS)  # also those of the others, whose collectives fail when this one's connections close
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
