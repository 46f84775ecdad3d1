"""A run whose folder, weights and data are in a bucket does what it does on a disk.

The slow ones are real processes of `python -m experiments.run` (tests/run/resume_test.py), whose
server is on loopback.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from typing import Any

import bucket
import conftest
import jax
import numpy as np
import pytest
import resume_test
import tiny_runs
from checkpoint_test import abstract, equal, make_state
from hf_test import assert_same, decoder, saved

from grpo_jax.distributed import inputs
from grpo_jax.errors import DataError, SettingError, StorageError
from grpo_jax.io import storage
from grpo_jax.loops import offline
from grpo_jax.models.hf import headers, tensors, writing
from grpo_jax.run import checkpoint, lock, workdir
from grpo_jax.setup import defaults, weights
from grpo_jax.tokenizer import making, reading
from grpo_jax.types import Prompts, Rollouts

pytestmark = pytest.mark.usefixtures("served")
ROOT = f"gs://{bucket.NAME}"


@pytest.mark.parametrize("killed", [True, False])
def test_an_export_that_was_cut_off_is_written_again(killed, monkeypatch):
  """Leaves some of its objects, which are copied one by one, by a kill or an error of the network."""
  target = storage.place(f"{ROOT}/cut_off_{killed}/export")

  def write(text: str) -> None:
    place = writing.check_target(str(target), "config.json", "a model")
    with writing.replacing(place, last="config.json") as part:
      assert part is not None
      for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (part / name).write_text(text)

  files, copied = storage.files(), []
  own = files.cp_file

  def copy(*args: Any, **named: Any) -> Any:
    copied.append(args)
    if len(copied) == 2:
      raise SystemExit if killed else ConnectionResetError
    return own(*args, **named)

  with monkeypatch.context() as patch:
    patch.setattr(files, "cp_file", copy)
    with pytest.raises(SystemExit if killed else StorageError):
      write("first")
  assert not (target / "config.json").exists()
  write("second")
  assert (target / "model.safetensors").read_text() == "second"


def test_a_checkpoint_comes_back_and_a_damaged_one_is_set_aside():
  folder = f"{ROOT}/checkpoints"
  states = {step: make_state(step / 7) for step in (1, 2, 3)}
  checkpoints = checkpoint.Checkpoints(folder, keep=2)
  for step, state in states.items():
    checkpoints.save(step, {"policy": state}, {"index": step}, {"seconds": 1.5}, wait=True)
  got = checkpoints.restore_latest({"policy": abstract(states[3])})
  assert got.step == 3 and equal(got.states["policy"], states[3]) and got.data == {"index": 3}
  assert equal(
    checkpoint.restore_params(folder, {"policy": abstract(states[3]).params["policy"]})["policy"],
    states[3].params["policy"],
  )
  checkpoints.close()
  about = storage.place(folder) / "checkpoints/3/about/metadata"
  storage.write(about, about.read_bytes()[:-5])
  unfinished = storage.place(folder) / "checkpoints/7/state"
  storage.write(unfinished / "part", b"x")
  assert checkpoint.latest(folder) == 3
  checkpoints = checkpoint.Checkpoints(folder, keep=2)
  assert not unfinished.exists()
  got = checkpoints.restore_latest({"policy": abstract(states[2])})
  assert (
    got.step == 2
    and equal(got.states["policy"], states[2])
    and "checkpoint 3 is damaged" in got.passed_over[0]
  )
  assert (storage.place(folder) / "damaged/3/state/_METADATA").is_file() and checkpoint.latest(
    folder
  ) == 2
  checkpoints.save(3, {"policy": states[1]}, {}, {}, wait=True)
  assert equal(
    checkpoints.restore_latest({"policy": abstract(states[1])}).states["policy"], states[1]
  )
  checkpoints.close()


def test_weights_come_back_and_their_headers_are_checked_without_them():
  folder = f"{ROOT}/weights/export"
  for size in (10**9, 20_000):  # one file, and several in its place
    config, params = saved(folder, max_bytes=size)
  assert [path.name for path in storage.place(folder).parent.iterdir()] == ["export"]
  assert not (storage.place(folder) / headers.SINGLE).exists()
  told = []
  tensors.check(folder, decoder(config).shapes())
  assert_same(
    tensors.load(folder, decoder(config), progress=lambda *read: told.append(read)), params
  )
  copied = sum(
    storage.size(path)
    for path in storage.place(folder).iterdir()
    if path.name.endswith(".safetensors")
  )
  numbers = sum(x.nbytes for x in jax.tree.leaves(params))
  assert (copied, copied) in told and told[-1] == (numbers, numbers)


def test_corrupt_weights_in_a_bucket_are_refused_before_they_are_copied(monkeypatch):
  folder = f"{ROOT}/corrupt"
  config, _ = saved(folder)
  file = storage.place(folder) / headers.SINGLE
  monkeypatch.setattr(storage, "download", None)
  for content in (file.read_bytes()[:-4], b"", b"\x80\x02 a pickle", b"\xff" * 20):
    storage.write(file, content)
    with pytest.raises(
      DataError, match=rf"init_from={folder}: model.safetensors is (corrupt|a pickle)"
    ):
      tensors.check(folder, decoder(config).shapes())
  file.unlink()
  with pytest.raises(DataError, match=r"no weights: model.safetensors is missing"):
    tensors.check(folder, decoder(config).shapes())
  with pytest.raises(SettingError, match="no such folder"):
    weights.read_shape(f"{ROOT}/nothing")


def test_a_tokenizer_comes_back():
  made = making.word_level(["one two three"])
  made.save(f"{ROOT}/tokenizer")
  read = reading.load(f"{ROOT}/tokenizer")
  assert read.encode("two one") == made.encode("two one") and read.eos_ids == made.eos_ids


def test_samples_that_were_drawn_come_back():
  zero = np.zeros((2, 3))
  samples = Rollouts(
    Prompts(zero, zero), zero, zero, zero, zero, zero, rewards=zero, given=zero, components=zero + 1
  )
  path = storage.place(f"{ROOT}/drawn/samples.npz")
  assert offline.read_samples(path, None, offline.template()) == (None, "")
  offline.write_samples(path, samples)
  got, error = offline.read_samples(path, offline.fingerprint(samples), offline.template())
  assert not error and np.array_equal(got.components, samples.components)


def test_the_config_that_owns_a_folder():
  config, folder = defaults.get_config(), f"{ROOT}/owned"
  workdir.check_owner(folder, tiny_runs.as_json(config))
  workdir.claim(folder, tiny_runs.as_json(config))
  workdir.check_owner(folder, tiny_runs.as_json(config))
  config.learner.lr = 1.0
  with pytest.raises(
    SettingError, match=r"belongs to another config \(learner.lr was 1e-06, is 1.0\)"
  ):
    workdir.check_owner(folder, tiny_runs.as_json(config))
  with workdir.locked(folder) as check_lock:
    check_lock()
    assert json.loads((storage.place(folder) / "lock").read_bytes())["pid"] == os.getpid()
  assert not (storage.place(folder) / "lock").exists()


def test_what_a_run_depends_on_is_recorded_there_and_its_files_are_known():
  folder = f"{ROOT}/inputs"
  file = storage.place(f"{folder}/data/train.jsonl")
  storage.write(file, b"one")
  before = inputs.describe_path("data.path", f"{folder}/data")
  assert list(before) == ["data.path/train.jsonl"] and before["data.path/train.jsonl"].startswith(
    "3 bytes, "
  )
  assert inputs.record(f"{folder}/run", before, 0) == []
  storage.write(file, b"two")
  after = inputs.describe_path("data.path", f"{folder}/data")
  (line,) = inputs.record(f"{folder}/run", after, 4)
  assert line.startswith(
    "data.path/train.jsonl has changed since step 4 of this run: was 3 bytes, "
  )
  assert json.loads((storage.place(folder) / "run/inputs-until-4.json").read_bytes()) == before
  assert inputs.describe_path("data.path", f"{folder}/none") == {"data.path": "absent"}


def test_a_lease_is_as_old_as_what_it_says(monkeypatch):
  """A write may take long, and another run counts from the time in it."""
  lease, now = object.__new__(lock.Lease), [100.0]
  monkeypatch.setattr(lock.time, "monotonic", lambda: now[0])

  def written():
    now[0] += 90
    return types.SimpleNamespace(generation=b"1")

  lease.name, lease._generation = "process 1", b""
  lease._store = types.SimpleNamespace(write=lambda *_, **__: types.SimpleNamespace(result=written))
  assert lease._renew() and lease._renewed == 100.0


# -- whole runs


class Runs(resume_test.Runs):
  """Runs in the bucket, whose folders are copied to the disk to be looked at."""

  def arguments(self, folder, *more):
    return [f"--config={self.config}", f"--workdir={ROOT}/{folder}", *more]

  def fetch(self, folder):
    shutil.rmtree(self.folder / folder, ignore_errors=True)
    prefix = f"{bucket.NAME}/{folder}/"
    for name in storage.files().find(prefix):
      target = self.folder / folder / name.removeprefix(prefix)
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes(storage.files().cat_file(name))

  def numbers(self, folder):
    self.fetch(folder)
    return super().numbers(folder)

  def steps_saved(self, folder):
    steps = (
      path
      for path in (storage.place(ROOT) / folder / "checkpoints").iterdir()
      if path.name.isdigit()
    )
    return sorted(int(path.name) for path in steps if (path / "commit_success.txt").exists())


@pytest.fixture(scope="module")
def runs(served, tmp_path_factory):
  return Runs(tmp_path_factory.mktemp("bucket"))


@pytest.fixture(scope="module")
def expected(runs):
  """What a run on a disk leaves that nothing happens to."""
  on_disk = resume_test.Runs(runs.folder)
  on_disk.finish("undisturbed")
  return on_disk.numbers("undisturbed")


@pytest.fixture(scope="module")
def killed(runs, expected):
  """The name of a run in the bucket that was killed in sampling, learning and saving, and came to
  its end.
  """
  runs.struck("killed", "sample", 4)
  assert runs.steps_saved("killed") in ([0], [0, 2])  # that of step 2 is being written, or just was
  # it could not let go
  assert json.loads((storage.place(ROOT) / "killed/lock").read_bytes())["pid"]
  runs.struck("killed", "learn", 3)
  runs.struck("killed", "save", 1, 0.03)
  said = runs.finish("killed").stdout.replace("\n", " ")
  assert "did not end by itself" in said and "going on from step" in said, said
  return "killed"


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_killed_and_goes_on_is_that_of_a_disk(runs, expected, killed):
  runs.assert_as_if_not_struck(killed, expected)
  left = {path.name for path in (runs.folder / killed).iterdir()}
  assert {
    "curve.png",
    "samples.html",
    "model",
    "export",
    "config.json",
    "result.json",
  } <= left and "lock" not in left


@pytest.mark.slow
@pytest.mark.long
def test_a_run_begins_from_others_and_from_data_in_the_bucket(runs, killed, tmp_path):
  runs.struck("unfinished", "learn", 3)  # has checkpoints, and no export
  lines = "".join(f'{{"question": "{i} + 1", "answer": "{i + 1}"}}\n' for i in range(20))
  for split in ("train", "test"):
    storage.write(storage.place(f"{ROOT}/data/{split}.jsonl"), lines.encode())
  weights = [
    f"--config.init_from={ROOT}/{killed}",
    "--config.model.variant=",
    "--config.tokenizer=",
  ]
  weights += [f"--config.ref_from={ROOT}/unfinished", "--config.steps=2"]
  data = [
    "--config.data.name=jsonl",
    f"--config.data.path={ROOT}/data",
    f"--config.compilation_cache={ROOT}/cache",
  ]
  done = runs.whole("second", *weights, *data)
  assert done.returncode == 0, done.stderr
  runs.fetch("second")
  (first, *_) = map(json.loads, (runs.folder / "second/metrics.jsonl").read_text().splitlines())
  assert (runs.folder / "second/export/model.safetensors").stat().st_size > 0 and first
  assert any(path.name.endswith("-cache") for path in storage.place(f"{ROOT}/cache").iterdir())


@pytest.mark.slow
def test_of_two_live_runs_the_second_is_refused(runs):
  command = [
    sys.executable,
    "-m",
    "experiments.run",
    *runs.arguments("twice", "--config.steps=100000"),
  ]
  first = subprocess.Popen(
    command, cwd=conftest.ROOT, env=conftest.environment(1), stdout=subprocess.DEVNULL
  )
  try:
    deadline = time.monotonic() + 120
    while not (storage.place(ROOT) / "twice/lock").exists():
      assert time.monotonic() < deadline and first.poll() is None
      time.sleep(0.5)
    second = runs.whole("twice", "--config.steps=100000")
    assert second.returncode == 2 and f"is in use by process {first.pid} on" in second.stderr, (
      second.stderr
    )
    assert "Traceback" not in second.stderr
  finally:
    first.send_signal(signal.SIGTERM)
    first.wait(120)
  assert not (storage.place(ROOT) / "twice/lock").exists()


@pytest.mark.long
@pytest.mark.slow
def test_the_reports_read_a_folder_in_the_bucket(runs, program):
  """Draws the reports of a run that was killed there once, and went on."""
  runs.struck("reported", "learn", 3)
  assert "going on from step" in runs.finish("reported").stdout.replace("\n", " ")
  drawn = program("grpo_jax.reports.plots", f"{ROOT}/reported")
  assert drawn.stdout.strip() == f"{ROOT}/reported/curve.png", drawn.stderr
  shown = program("grpo_jax.reports.inspector", f"{ROOT}/reported")
  assert shown.stdout.strip() == f"{ROOT}/reported/samples.html", shown.stderr
  refused = program("grpo_jax.reports.plots", f"{ROOT}/nothing")
  assert refused.returncode == 2 and "no such folder" in refused.stderr
