"""Connects every process of a run with process 0."""

import functools
import os
import secrets
import socket
import time

from jax._src import distributed  # the address of process 0 is not public

from grpo_jax.distributed import hosts

CONNECT_SECONDS = 30
GREETING_SECONDS = 3  # for one connection to say who it is
KEEPALIVE_SECONDS = 25  # until the system notices that another machine is lost


def connect(index: int) -> tuple[dict[int, socket.socket], list[str]]:
  """Returns the connections of process `index` and the names of all processes, for messages.

  Every process calls it. The connections are by process: process 0 has one to each other process,
  which have one to process 0.

  Raises:
    OSError, hosts.Elsewhere: on all processes, if one cannot be reached.
  """
  server = hosts.together(_listen if index == 0 else lambda: None)
  port = server.getsockname()[1] if server else 0
  port, secret = hosts.gather((port, secrets.token_hex(16)))[0]
  names = hosts.gather(f"host {index} (process {os.getpid()} on {socket.gethostname()})")
  if server:
    connected = hosts.together(functools.partial(_accept, server, secret, len(names) - 1))
    server.close()
  else:
    coordinator = distributed.global_state.coordinator_address
    assert coordinator, "jax.distributed is not initialized"
    address = coordinator.rpartition(":")[0].strip("[]")
    greeting = f"{secret} {index}\n"
    connected = hosts.together(functools.partial(_reach, (address, port), greeting))
  return connected, names


def _listen() -> socket.socket:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)


def _accept(server: socket.socket, secret: str, others: int) -> dict[int, socket.socket]:
  """Returns the connections to all other processes, by process; closes those of strangers."""
  connected: dict[int, socket.socket] = {}
  server.settimeout(CONNECT_SECONDS)
  while len(connected) < others:
    connection, _ = server.accept()
    word, _, index = _greeting(connection).partition(" ")
    if secrets.compare_digest(word.encode(), secret.encode()):
      connected[int(index)] = _keep_alive(connection)
    else:
      connection.close()
  return connected


def _greeting(connection: socket.socket) -> str:
  """Returns the first line that comes; "" if none does, as from a program that scans ports."""
  end, said = time.monotonic() + GREETING_SECONDS, b""
  try:
    while b"\n" not in said and len(said) < 100:
      connection.settimeout(max(end - time.monotonic(), 0.001))
      more = connection.recv(100 - len(said))
      if not more:
        break
      said += more
  except OSError:
    return ""
  return said.decode(errors="replace").strip()


def _reach(address: tuple[str, int], greeting: str) -> dict[int, socket.socket]:
  """Returns the connection to process 0, as {0: connection}."""
  connection = socket.create_connection(address, CONNECT_SECONDS)
  connection.sendall(greeting.encode())
  return {0: _keep_alive(connection)}


def _keep_alive(connection: socket.socket) -> socket.socket:
  """Returns the connection, which the system now closes if its other machine is lost."""
  connection.settimeout(None)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  settings = {"TCP_KEEPIDLE": KEEPALIVE_SECONDS - 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
  for name, value in settings.items():
    if hasattr(socket, name):  # Linux has them
      connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
  return connection
