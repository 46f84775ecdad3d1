"""Keeps a second run out of a folder: a lock on a file, or in a bucket a lease. jax is not imported
here.

The system lets go of the lock of a file when its holder ends, however it ends. A lease goes stale.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import uuid
import warnings
from typing import Any, TextIO

from grpo_jax.io import storage

RENEW_SECONDS = 20.0  # between two signs of life of the holder of a lease
STALE_SECONDS = 120.0  # without one, after which a lease may be taken over


def take(file: TextIO) -> str:
  """Locks an open file and writes this process into it.

  Args:
    file: open to read and append; the lock lasts until it is closed.

  Returns:
    Who holds it already ("process 12 on HOST"), or "" where this process holds it now.
  """
  # a child that outlives this process must not go on holding it
  os.register_at_fork(after_in_child=file.close)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    return file.readline(200).strip() or "another process"
  except OSError as error:
    if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
      raise
    said = (
      f"{file.name}: this file system has no locks, so a second run in the folder would not be "
      "noticed"
    )
    warnings.warn(said, stacklevel=2)
  file.truncate(0)
  file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
  file.flush()
  return ""


class Lease:
  """Holds a folder of a bucket, which has no locks, by an object DIR/lock that is renewed as long
  as its holder lives.

  It is made only where there is none, renewed and deleted only where it is still this one
  (`ifGenerationMatch`): of two processes that try at once one succeeds. A holder that died on this
  machine is known by its process, one that died elsewhere when it has not renewed it for
  STALE_SECONDS; the clocks of the machines must not differ by as much.
  """

  def __init__(self, folder: str):
    """`folder`: in a bucket, gs://BUCKET/FOLDER."""
    import tensorstore

    self.folder, self.name = folder, f"process {os.getpid()} on {socket.gethostname()}"
    self.warning = ""
    """What a person should know of how the lease was taken; "" for nothing."""
    with storage.as_os_errors():
      bucket, name = storage.parts(folder)
      where = {"driver": "gcs", "bucket": bucket, "path": f"{name}/" if name else ""}
      self._store = tensorstore.KvStore.open(where).result()
    self._ended = threading.Event()
    self._lost, self._waits = "", False

  def take(self) -> str:
    """Takes the lease and goes on renewing it; returns who holds it already, or "" where this
    process holds it now.

    Where it is not known whether the holder is alive, it waits for its next sign of life, and at
    most STALE_SECONDS.

    Raises:
      OSError: the bucket cannot be read or written.
    """
    found = self._read()
    while found.value:
      holder = _holder(found.value)
      if here := holder["machine"] == _machine() != "":
        if _alive(holder["pid"]):
          return holder["name"]
      age = time.time() - holder["time"]
      if here or age >= STALE_SECONDS:
        said = (
          f"{holder['name']} had {self.folder} and did not end by itself; its last sign of life is "
          f"{age:.0f} s old"
        )
        self.warning = f"{said}, and this run goes on from what it saved"
        break
      if not self._waits:
        self._waits = True
        print(
          f"{holder['name']} may be using {self.folder}: waiting for its next sign of life",
          flush=True,
        )
      time.sleep(RENEW_SECONDS / 4)
      again = self._read()
      if again.value and again.stamp.generation != found.stamp.generation:
        return holder["name"]
      found = again
    self._generation = found.stamp.generation
    if not self._renew():
      return _holder(self._read().value)["name"]
    self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
    self._thread.start()
    return ""

  def check(self) -> str:
    """Returns "" while this process holds the lease, or how it was lost: then another one may write
    to the folder.
    """
    if not self._lost and time.monotonic() - self._renewed > STALE_SECONDS:
      self._lost = f"no sign of life could be written there for {STALE_SECONDS:.0f} s, so another run may have begun"
    return self._lost

  def release(self) -> None:
    """Stops renewing it and deletes it, so that the next run need not wait."""
    self._ended.set()
    self._thread.join()
    if not self.check():
      with contextlib.suppress(OSError), storage.as_os_errors():  # else it goes stale by itself
        self._store.write("lock", None, if_equal=self._generation).result()

  def _keep(self) -> None:
    """Renews the lease until it ends or is lost; runs in a thread."""
    while not self._ended.wait(RENEW_SECONDS):
      try:
        if not self._renew():
          self._lost = f"{_holder(self._read().value)['name']} has taken {self.folder} over"
          return
      except OSError:
        continue  # `check` says when it was too long ago

  def _renew(self) -> bool:
    """Writes the lease anew where it is still the one that was read or written last; returns
    whether it was.
    """
    # another run counts from the time in the object, and writing it may take long
    began = time.monotonic()
    said = {
      "name": self.name,
      "pid": os.getpid(),
      "machine": _machine(),
      "time": time.time(),
      "id": str(uuid.uuid4()),
    }
    content = json.dumps(said).encode()
    with storage.as_os_errors():
      written = self._store.write("lock", content, if_equal=self._generation).result()
    if written.generation:
      self._generation, self._renewed = written.generation, began
      return True
    # where an answer was lost, tensorstore wrote twice, and the second found the first
    found = self._read()
    if found.value != content:
      return False
    self._generation, self._renewed = found.stamp.generation, began
    return True

  def _read(self) -> Any:
    """The object, and its generation."""
    with storage.as_os_errors():
      return self._store.read("lock").result()


def _holder(content: bytes) -> dict[str, Any]:
  """What a lease says of its holder; one that cannot be read is as good as stale."""
  nobody = {"name": "another process", "pid": 0, "machine": "", "time": 0.0}
  with contextlib.suppress(ValueError):
    found = json.loads(content)
    if isinstance(found, dict) and all(
      isinstance(found.get(name), type(value)) for name, value in nobody.items()
    ):
      return found
  return nobody


def _machine() -> str:
  """What tells this machine since it was started, and this container, from all others; "" where
  nothing does.
  """
  try:
    started = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{started} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return ""


def _alive(pid: int) -> bool:
  """Returns whether a process of this machine, other than this one, is alive."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    return True
  return pid != os.getpid()
