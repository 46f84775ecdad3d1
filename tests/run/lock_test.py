"""The lease of a run's folder."""

import os
import threading
import uuid

import bucket
import pytest
from storage_test import put, taken

from grpo_jax.io import storage
from grpo_jax.run import lock


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
  """An empty folder, on a disk and in a bucket."""
  if request.param == "disk":
    return storage.place(tmp_path)
  request.getfixturevalue("served")
  return storage.place(f"gs://{bucket.NAME}/{tmp_path.name}")


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)
  monkeypatch.setattr(lock, "STALE_SECONDS", 2.0)
  # as if each process ran elsewhere
  monkeypatch.setattr(lock, "_machine", lambda: str(uuid.uuid4()))


def test_of_two_leases_the_second_is_refused(served, quick):
  first = taken("gs://bucket/two")
  second = lock.Lease("gs://bucket/two")
  assert second.take() == first.name  # it was renewed meanwhile
  assert first.check() == ""
  first.release()
  assert not storage.place("gs://bucket/two/lock").exists()
  taken("gs://bucket/two").release()


def test_of_many_leases_at_once_one_is_taken(served, quick):
  leases, found = [lock.Lease("gs://bucket/many") for _ in range(8)], []
  threads = [
    threading.Thread(target=lambda lease=lease: found.append(lease.take())) for lease in leases
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found.count("") == 1
  next(lease for lease in leases if hasattr(lease, "_thread")).release()


def test_one_that_died_on_this_machine_is_not_waited_for(served, monkeypatch):
  monkeypatch.setattr(lock, "STALE_SECONDS", 1e6)
  put("gs://bucket/here", machine=lock._machine(), pid=2**22 + 1)
  taken("gs://bucket/here").release()
  put("gs://bucket/here", machine=lock._machine(), pid=os.getppid())
  assert lock.Lease("gs://bucket/here").take() == "process 1 on there"
