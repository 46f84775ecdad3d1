"""Numbers for W&B, with the real package and no network."""

import os

import pytest

from grpo_jax.run import leaving

pytest.importorskip("wandb", reason="pip install -e '.[wandb]' -c constraints.txt")


def test_a_run_is_kept_offline_with_its_numbers_and_config(tmp_path, monkeypatch):
  from grpo_jax.writers import wandb as output

  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  folder = tmp_path / "my_run"
  folder.mkdir()
  before, ids = leaving.descendants(os.getpid()), []
  for first in (0, 2, 0):  # the last: a new run in the folder
    writer = output.Writer(str(folder), {"steps": 4, "learner": {"lr": 1e-3}}, first)
    ids.append(writer.run.id)
    writer.write(first + 1, {"kl": 0.5, "reward/mean": first / 2})
    writer.close()
  # what were left would be ended before W&B ends it, which W&B tells by a traceback
  assert leaving.descendants(os.getpid()).keys() <= before.keys()
  assert ids[0] == ids[1] != ids[2] and writer.run.name == "my_run"
  files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
  assert len(files) == 3
  kept = [file.read_bytes() for file in files]
  assert all(b"reward/mean" in data and b"learner" in data for data in kept)
  assert b"1.0" in kept[1] and b"_step" in kept[1]
