"""Copies of growing files in a bucket."""

import bucket
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.io import bucket_logs, storage


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
  """An empty folder, on a disk and in a bucket."""
  if request.param == "disk":
    return storage.place(tmp_path)
  request.getfixturevalue("served")
  return storage.place(f"gs://{bucket.NAME}/{tmp_path.name}")


def test_a_mirror_adds_to_what_is_there(folder):
  folder.mkdir(parents=True, exist_ok=True)
  storage.write(folder / "log", b"one\n")
  (folder / "tracker").mkdir(parents=True, exist_ok=True)
  storage.write(folder / "tracker" / "run_id", b"7")
  with bucket_logs.Mirror(folder, ("log", "other", "tracker/run_id"), seconds=0) as copied:
    assert copied.is_away == storage.in_bucket(folder)
    assert copied.folder.name == folder.name
    assert (copied.folder / "tracker/run_id").read_bytes() == b"7"
    with open(copied.folder / "log", "a") as f:
      f.write("two\n")
      f.flush()
      copied.upload(wait=True)
      assert (folder / "log").read_bytes() == b"one\ntwo\n"
      f.write("three\n")
      f.flush()
      copied.tick()
    (copied.folder / "deep").mkdir()
    (copied.folder / "deep" / "trace").write_text("x")
  assert (folder / "log").read_bytes() == b"one\ntwo\nthree\n" and (
    folder / "deep/trace"
  ).read_bytes() == b"x"
  assert copied.folder.exists() != copied.is_away


def test_a_mirror_copies_nothing_where_it_must_not(served):
  def lost():
    raise SettingError("another run is there")

  with pytest.raises(SettingError, match="another run"):  # noqa: SIM117  at the end of the block
    with bucket_logs.Mirror("gs://bucket/taken", (), seconds=0, check=lost) as copied:
      (copied.folder / "log").write_text("x")
  assert not storage.place("gs://bucket/taken/log").exists() and not copied.folder.exists()


def test_a_mirror_tells_of_a_copy_that_failed(served, monkeypatch):
  copied = bucket_logs.Mirror("gs://bucket/failing", (), seconds=0)

  def full(*_):
    raise OSError("quota")

  monkeypatch.setattr(storage, "write", full)
  (copied.folder / "log").write_text("x")
  copied.upload()
  with pytest.raises(OSError, match="quota"):
    copied.upload(wait=True)
