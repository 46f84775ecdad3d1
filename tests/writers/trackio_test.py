"""Writes numbers for Trackio, with the real package and no network."""

import contextlib
import json
import sqlite3

import pytest


def test_a_run_is_kept_on_this_machine_and_resumed(tmp_path, monkeypatch):
  monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))  # read when it is imported
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  pytest.importorskip("trackio", reason="pip install -e '.[trackio]' -c constraints.txt")
  from grpo_jax.writers import trackio as output

  folder, names = tmp_path / "my_run", []
  folder.mkdir()
  for first in (0, 2, 0):  # the last: a new run in the folder
    writer = output.Writer(str(folder), {"steps": 4, "learner": {"lr": 1e-3}}, first)
    names.append(writer.run.name)
    writer.write(first + 1, {"kl": 0.5, "reward/mean": first / 2})
    writer.close()
  assert names[0] == names[1] != names[2] and names[0].startswith("my_run-")
  with contextlib.closing(sqlite3.connect(tmp_path / "kept" / "grpo_jax.db")) as kept:
    rows = kept.execute("select run_name, step, metrics from metrics order by id").fetchall()
  assert [(name, step) for name, step, _ in rows] == [(names[0], 1), (names[0], 3), (names[2], 1)]
  numbers = json.loads(rows[1][2])
  assert {name: numbers[name] for name in ("kl", "reward/mean")} == {"kl": 0.5, "reward/mean": 1.0}
