"""Keeps a second run out of a folder: by a lock on a file, or in a bucket by a lease.

The system releases the lock of a file when its holder ends, however it ends. A lease becomes stale.
jax is not imported here.
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
from typing import TYPE_CHECKING, TextIO, TypedDict

from grpo_jax.io import storage

if TYPE_CHECKING:
  import tensorstore

RENEW_SECONDS = 20.0  # between two signs of life of the holder of a lease
STALE_SECONDS = 120.0  # a lease without a sign of life for so long may be taken over


class Holder(TypedDict):
  """Content of a lease, as JSON; an `id` makes each one different."""

  name: str  # process 12 on HOST
  pid: int
  machine: str
  time: float  # of the last sign of life, in seconds since the epoch


def take(file: TextIO) -> str:
  """Locks an open file and writes this process into it.

  Args:
    file: open to read and append; the lock lasts until it is closed.

  Returns:
    Who holds it already ("process 12 on HOST"), or "" if this process holds it now.
  """
  # a child that outlives this process must not hold it
  os.register_at_fork(after_in_child=file.close)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    return file.readline(200).strip() or "another process"
  except OSError as error:
    if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
      raise
    warnings.warn(
      f"{file.name}: this file system has no locks, so a second run in the folder would not be "
      "noticed",
      stacklevel=2,
    )
  file.truncate(0)
  file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
  file.flush()
  return ""


class Lease:
  """Holds a folder of a bucket by an object DIR/lock that its holder renews.

  It is created only if there is none, and renewed and deleted only if it is still this one
  (`ifGenerationMatch`): of two processes that try at once one succeeds. A holder on this machine is
  dead if its process is; one elsewhere if it has not renewed the lease for STALE_SECONDS. The
  clocks of the machines must not differ by as much.
  """

  def __init__(self, folder: str):
    """Opens the folder gs://BUCKET/FOLDER."""
    import tensorstore

    self.folder, self.name = folder, f"process {os.getpid()} on {socket.gethostname()}"
    self.warning = ""  # what a person should know about how the lease was taken
    with storage.as_os_errors():
      bucket, name = storage.parts(folder)
      where = {"driver": "gcs", "bucket": bucket, "path": f"{name}/" if name else ""}
      self._store = tensorstore.KvStore.open(where).result()
    self._ended = threading.Event()
    self._lost, self._waits = "", False

  def take(self) -> str:
    """Takes the lease and keeps renewing it; returns who holds it already, or "" on success.

    If it is not known whether the holder is alive, waits for its next sign of life, at most
    STALE_SECONDS.
    """
    current = self._read()
    while current.value:
      holder = _holder(current.value)
      if here := holder["machine"] == _machine() != "":
        if _alive(holder["pid"]):
          return holder["name"]
      age = time.time() - holder["time"]
      if here or age >= STALE_SECONDS:
        self.warning = (
          f"{holder['name']} had {self.folder} and did not end by itself; its last sign of life is "
          f"{age:.0f} s old, and this run goes on from what it saved"
        )
        break
      if not self._waits:
        self._waits = True
        print(
          f"{holder['name']} may be using {self.folder}: waiting for its next sign of life",
          flush=True,
        )
      time.sleep(RENEW_SECONDS / 4)
      again = self._read()
      if again.value and again.stamp.generation != current.stamp.generation:
        return holder["name"]
      current = again
    self._generation = current.stamp.generation
    if not self._renew():
      return _holder(self._read().value)["name"]
    self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
    self._thread.start()
    return ""

  def check(self) -> str:
    """Returns "" while this process holds the lease, or how it was lost to another one."""
    if not self._lost and time.monotonic() - self._renewed > STALE_SECONDS:
      self._lost = (
        f"no sign of life could be written there for {STALE_SECONDS:.0f} s, so another run may "
        "have begun"
      )
    return self._lost

  def release(self) -> None:
    """Stops renewing the lease and deletes it, so that the next run need not wait."""
    self._ended.set()
    self._thread.join()
    if not self.check():
      with contextlib.suppress(OSError), storage.as_os_errors():  # else it becomes stale
        self._store.write("lock", None, if_equal=self._generation).result()

  def _keep(self) -> None:
    """Renews the lease until it is released or lost; runs in a thread."""
    while not self._ended.wait(RENEW_SECONDS):
      try:
        if not self._renew():
          self._lost = f"{_holder(self._read().value)['name']} has taken {self.folder} over"
          return
      except OSError:
        continue  # `check` says when it was too long ago

  def _renew(self) -> bool:
    """Renews the lease if it is still the one last read or written; returns whether it was."""
    # another run counts from the time in the object, and writing it may take long
    began = time.monotonic()
    holder = Holder(name=self.name, pid=os.getpid(), machine=_machine(), time=time.time())
    content = json.dumps({**holder, "id": str(uuid.uuid4())}).encode()
    with storage.as_os_errors():
      written = self._store.write("lock", content, if_equal=self._generation).result()
    if written.generation:
      self._generation, self._renewed = written.generation, began
      return True
    # if an answer was lost, tensorstore wrote twice, and the second write met the first
    current = self._read()
    if current.value != content:
      return False
    self._generation, self._renewed = current.stamp.generation, began
    return True

  def _read(self) -> "tensorstore.KvStore.ReadResult":
    """Returns the object and its generation."""
    with storage.as_os_errors():
      return self._store.read("lock").result()


def _holder(content: bytes) -> Holder:
  """Returns the holder in a lease; one that cannot be read counts as stale."""
  nobody = Holder(name="another process", pid=0, machine="", time=0.0)
  with contextlib.suppress(ValueError):
    holder = json.loads(content)
    if isinstance(holder, dict) and all(
      isinstance(holder.get(name), type(value)) for name, value in nobody.items()
    ):
      return Holder(
        name=holder["name"], pid=holder["pid"], machine=holder["machine"], time=holder["time"]
      )
  return nobody


def _machine() -> str:
  """Returns an identifier of this machine since its start, and of this container; or ""."""
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
