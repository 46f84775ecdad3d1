"""Connections of every process with process 0, over the loopback."""

import concurrent.futures
import socket

from grpo_jax.distributed import connections

SECRET = "of-this-run"


def test_process_0_alone_needs_no_connection():
  connected, (name,) = connections.connect(0)
  assert connected == {} and name.startswith("host 0 (process ")


def test_each_process_is_known_by_its_number_and_a_stranger_is_closed(monkeypatch):
  """Neither bytes that are no text nor silence keep the others out."""
  monkeypatch.setattr(connections, "GREETING_SECONDS", 2.0)
  with connections._listen() as server, concurrent.futures.ThreadPoolExecutor() as threads:
    address = "localhost", server.getsockname()[1]
    accepting = threads.submit(connections._accept, server, SECRET, 2)
    stranger = socket.create_connection(address, 30)
    stranger.sendall(b"of-another-run 2\n")
    assert stranger.recv(1) == b""  # closed
    for bytes_sent in (b"\x16\x03\x01\xff\xfe\n", b""):
      with socket.create_connection(address, 30) as odd:
        odd.sendall(bytes_sent)
        assert odd.recv(1) == b""
    others = {i: connections._reach(address, f"{SECRET} {i}\n")[0] for i in (2, 1)}
    connected = accepting.result()
  assert set(connected) == {1, 2}
  for i, other in others.items():
    connected[i].sendall(b"to %d" % i)
    assert other.recv(10) == b"to %d" % i
    for end in (connected[i], other):
      assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) and end.gettimeout() is None
      end.close()
  stranger.close()
