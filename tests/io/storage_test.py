"""Folders on a disk and in a bucket: what is refused, and that each function does the same in both."""

import json
import sys
import time
import uuid

import bucket
import pytest
import tiny_runs

from grpo_jax.config import sections
from grpo_jax.data import jsonl
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.reports import inspector, plots
from grpo_jax.run import lock, workdir
from grpo_jax.setup import defaults


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
  """An empty folder, on a disk and in a bucket."""
  if request.param == "disk":
    return storage.place(tmp_path)
  request.getfixturevalue("served")
  return storage.place(f"gs://{bucket.NAME}/{tmp_path.name}")


@pytest.mark.parametrize(
  ("value", "said"),
  [
    ("s3://b/run", "s3:// is not supported; use gs://BUCKET/FOLDER"),
    ("hdfs://host/run", "hdfs:// is not supported"),
    ("http://host/run", "http:// is not supported"),
    ("file:///run", "file:// is not supported"),
    ("gs:/b/run", "gs:/ would be a folder of that name on this disk"),
    ("./gs:/b/run", "gs:/ would be a folder of that name on this disk"),
    ("/home/me/gs:/b/run", "gs:/ would be a folder of that name on this disk"),
    ("./gs://b/run", "./gs:// is not supported"),
    ("gs://", "names no bucket"),
    ("gs:///run", "names no bucket"),
    ("gs://Bucket/run", "names no bucket"),
    ("gs://bucket/a/../b", "may not contain .."),
    ("gs://bucket/a*", "another name"),
  ],
)
def test_what_cannot_work_is_refused_by_name(value, said):
  config = defaults.get_config()
  config.init_from = value
  with pytest.raises(SettingError) as error:
    sections.check(config)
  assert str(error.value).startswith(f"init_from={value!r}: ") and said in str(error.value)


@pytest.mark.parametrize(
  "value", ["", "runs/1", "a:b", "../x", "C:/x", "gs", "/a b/c", "runs/a[1]*"]
)
def test_any_name_of_a_disk_will_do(value):
  storage.check("init_from", value)


@pytest.mark.parametrize(
  ("value", "new", "said"),
  [
    ("folder.html", False, "is a folder; use the name of a file"),
    ("none/x.html", False, "none is no folder that can be written to"),
    ("there.html/x.html", False, "there.html is no folder that can be written to"),
    ("metrics.jsonl", False, "use a name that ends with .html, as in "),
    ("page", False, "page.html"),
    ("there.html", True, "is there already; remove it, or use another name"),
  ],
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path, value, new, said):
  (tmp_path / "folder.html").mkdir()
  (tmp_path / "there.html").touch()
  with pytest.raises(SettingError) as error:
    storage.check_file("--out", f"{tmp_path}/{value}", ".html", new)
  assert str(error.value).startswith(f"--out='{tmp_path}/{value}': ") and said in str(error.value)


def test_a_file_that_can_be_written_passes(tmp_path, monkeypatch):
  """Takes one that is there, too, unless it has to be new, one of this folder and a bucket's."""
  (tmp_path / "there.html").touch()
  storage.check_file("--out", f"{tmp_path}/there.html", ".html")
  storage.check_file("--out", f"{tmp_path}/new", new=True)
  storage.check_file("--out", "gs://bucket/none/x.html", ".html")
  monkeypatch.chdir(tmp_path)
  storage.check_file("--out", "page.html", ".html", new=True)


def test_a_bucket_without_gcsfs_is_refused_with_the_command(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  with pytest.raises(
    SettingError, match=r"--workdir='gs://bucket/run': .*needs gcsfs.*pip install -e '\.\[gcs\]'"
  ):
    storage.check("--workdir", "gs://bucket/run")


def test_a_bucket_that_is_not_there_is_refused(served):
  with pytest.raises(SettingError, match="workdir='gs://nobody/run': the bucket cannot be read"):
    workdir.check_owner("gs://nobody/run", tiny_runs.as_json(defaults.get_config()))


def test_files(folder):
  file = folder / "a" / "b.txt"
  file.parent.mkdir(parents=True, exist_ok=True)
  for text in (b"", b"once", b"hello"):
    storage.write(file, text)
    assert file.read_bytes() == text and storage.size(file) == len(text)
  assert storage.start(file, 3) == b"hel" and storage.start(file, 99) == b"hello"
  storage.cut(file, 2)
  assert file.read_bytes() == b"he"
  with storage.writing(file) as local:
    local.write_text("from a library")
  with storage.reading(file) as local:
    assert local.read_text() == "from a library"
  assert [path.name for path in file.parent.iterdir()] == ["b.txt"]


def test_folders(folder):
  for name in ("x/one", "x/in/two", "x/last"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    storage.write(folder / name, name.encode())
  storage.rename(folder / "x", folder / "y", last="last")
  assert not (folder / "x").exists() and (folder / "y").is_dir()
  assert (folder / "y/in/two").read_bytes() == b"x/in/two" and (
    folder / "y/last"
  ).read_bytes() == b"x/last"
  storage.remove(folder / "y")
  storage.remove(folder / "y")
  assert not (folder / "y").exists()


def test_the_last_object_of_a_renamed_folder_comes_last(served, monkeypatch):
  folder = storage.place("gs://bucket/last")
  for name in ("a", "config.json", "z"):
    storage.write(folder / name, b"")
  copied, real = [], storage.files().cp_file

  def copy(source, target):
    copied.append(source.rpartition("/")[2])
    real(source, target)

  monkeypatch.setattr(storage.files(), "cp_file", copy)
  storage.rename(folder, storage.place("gs://bucket/renamed"), last="config.json")
  assert copied == ["a", "z", "config.json"]


def test_logs_are_cut_back(folder):
  folder.mkdir(parents=True, exist_ok=True)
  storage.write(folder / "metrics.jsonl", b'{"step": 1}\n{"step": 2}\n{"st')
  assert (
    workdir.log_lengths(str(folder)) == {"metrics.jsonl": 28}
    and workdir.steps_logged(str(folder)) == 2
  )
  assert workdir.cut_back(str(folder), {"metrics.jsonl": 12}) == {}
  assert (folder / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
  assert workdir.cut_back(str(folder), {"metrics.jsonl": 20, "samples.jsonl": 5}) == {
    "metrics.jsonl": 8,
    "samples.jsonl": 5,
  }


def test_data_and_reports(folder):
  folder.mkdir(parents=True, exist_ok=True)
  storage.write(folder / "train.jsonl", b'{"question": "1 + 1", "answer": "2"}\n')
  (example,) = jsonl.source("train", str(folder), jsonl.settings())
  assert example.answer == "2"
  with pytest.raises(
    SettingError, match=r"looked for test.jsonl in this folder, which has train.jsonl"
  ):
    jsonl.source("test", str(folder), jsonl.settings())
  storage.write(folder / "metrics.jsonl", b'{"step": 1, "reward/mean": 0.5}\n')
  storage.write(folder / "samples.jsonl", b'{"step": 1, "question": "q"}\n')
  assert plots.draw(str(folder)).read_bytes().startswith(b"\x89PNG")
  assert folder.name.encode() in inspector.write(str(folder)).read_bytes()


# -- the lease on a bucket


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)
  monkeypatch.setattr(lock, "STALE_SECONDS", 2.0)
  # as if each process ran elsewhere
  monkeypatch.setattr(lock, "_machine", lambda: str(uuid.uuid4()))


def put(folder, **changes):
  """A lease that another process wrote."""
  said = {
    "name": "process 1 on there",
    "pid": 1,
    "machine": "there",
    "time": time.time(),
    "id": "1",
  } | changes
  storage.write(storage.place(folder) / "lock", json.dumps(said).encode())


def taken(folder):
  lease = lock.Lease(folder)
  assert lease.take() == ""
  return lease


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": 1}', None])
def test_a_stale_lease_is_taken_over_with_a_warning(served, quick, content):
  folder = f"gs://bucket/stale{content!r}".replace("[", "").replace("]", "")
  put(folder, time=time.time() - 5)
  if content is not None:
    storage.write(storage.place(folder) / "lock", content)
  lease = taken(folder)
  assert content == b"" or "did not end by itself" in lease.warning
  lease.release()


def test_one_that_may_be_alive_is_waited_for(served, quick):
  begun = time.monotonic()
  put("gs://bucket/dead")
  lease = taken("gs://bucket/dead")
  assert time.monotonic() - begun > 0.5 and "process 1 on there" in lease.warning
  lease.release()


def test_a_lease_that_is_taken_over_is_lost(served, quick):
  lease = taken("gs://bucket/lost")
  put("gs://bucket/lost")
  deadline = time.monotonic() + 5
  while not lease.check() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert lease.check() == "process 1 on there has taken gs://bucket/lost over"
  lease.release()
  assert b"there" in storage.place("gs://bucket/lost/lock").read_bytes()


def test_a_lease_that_cannot_be_renewed_is_lost(served, quick, monkeypatch):
  lease = taken("gs://bucket/cut")

  def cut_off():
    raise OSError("no network")

  monkeypatch.setattr(lease, "_renew", cut_off)
  time.sleep(2.4)
  assert lease.check().startswith("no sign of life could be written there for 2 s")
  lease.release()
