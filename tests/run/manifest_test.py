"""Checksums of whole files of a run."""

import json

import pytest

from grpo_jax.errors import CheckpointError
from grpo_jax.run import manifest


@pytest.fixture
def run(tmp_path):
  (tmp_path / "export").mkdir()
  for name in ("config.json", "result.json", "export/a", "export/b"):
    (tmp_path / name).write_text(name)
  manifest.record(str(tmp_path), ["config.json"])
  manifest.record(str(tmp_path), manifest.END)
  return tmp_path


def test_files_are_recorded_by_their_names_in_the_folder(run):
  sums = manifest.read(str(run))
  assert list(sums) == ["config.json", "export/a", "export/b", "result.json"]
  assert sums["export/a"].startswith("8 bytes, ")
  assert not any(manifest.changed(str(run), name, saved) for name, saved in sums.items())


def test_what_has_changed_or_is_missing(run):
  sums = manifest.read(str(run))
  (run / "export" / "a").write_text("export/A")
  (run / "result.json").unlink()
  assert manifest.changed(str(run), "export/a", sums["export/a"]).startswith("8 bytes, ")
  assert manifest.changed(str(run), "result.json", sums["result.json"]) == manifest.MISSING


def test_a_name_is_recorded_anew_with_all_its_files(run):
  (run / "export" / "a").unlink()
  (run / "config.json").unlink()
  manifest.record(str(run), ["export"])
  assert list(manifest.read(str(run))) == ["config.json", "export/b", "result.json"]


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", "a\0"])
def test_a_name_outside_the_folder_is_refused(name, run):
  (run / manifest.NAME).write_text(json.dumps({name: "1 bytes"}))
  with pytest.raises(CheckpointError, match="which is no file of this folder"):
    manifest.read(str(run))


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_record_is_refused_and_replaced(text, run):
  (run / manifest.NAME).write_text(text)
  with pytest.raises(CheckpointError, match=f"^workdir={run}: {manifest.NAME} "):
    manifest.read(str(run))
  manifest.record(str(run), ["result.json"])
  assert list(manifest.read(str(run))) == ["result.json"]
