"""Tests the picture of several seeds."""

import json

import pytest
from absl import flags

from experiments.measure import seeds
from grpo_jax.errors import SettingError


def test_folders_are_grouped_by_task():
  assert seeds.tasks(["runs/guess_0", "runs/calculator_0", "elsewhere/guess_12"]) == {
    "guess": [("0", "runs/guess_0"), ("12", "elsewhere/guess_12")],
    "calculator": [("0", "runs/calculator_0")],
  }
  with pytest.raises(SettingError, match="DIR='runs/guess': its name is no TASK_SEED"):
    seeds.tasks(["runs/guess"])


def test_a_picture_of_another_kind_is_refused(tmp_path, monkeypatch, capsys):
  folder = tmp_path / "sft_0"
  folder.mkdir()
  (folder / "metrics.jsonl").touch()
  monkeypatch.setattr(flags, "FLAGS", type("Values", (), {"out": f"{tmp_path}/seeds.xyz"}))
  with pytest.raises(SystemExit):
    seeds.main(["seeds", str(folder)])
  assert "seeds.xyz': use a name that ends with .png" in capsys.readouterr().err


def test_a_file_that_is_there_is_kept(tmp_path, monkeypatch, capsys):
  folder, there = tmp_path / "guess_0", tmp_path / "mine.png"
  folder.mkdir()
  (folder / "metrics.jsonl").touch()
  there.write_text("mine")
  monkeypatch.setattr(flags, "FLAGS", type("Values", (), {"out": str(there)}))
  with pytest.raises(SystemExit):
    seeds.main(["seeds", str(folder)])
  assert "mine.png': is there already" in capsys.readouterr().err and there.read_text() == "mine"


def test_without_folders_the_error_names_this_program(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(flags, "FLAGS", type("Values", (), {"out": f"{tmp_path}/seeds.png"}))
  with pytest.raises(SystemExit):
    seeds.main(["seeds"])
  assert "python -m experiments.measure.seeds runs/guess_0" in capsys.readouterr().err


def test_a_run_without_rewards_is_refused(tmp_path):
  pytest.importorskip("matplotlib")
  folder = tmp_path / "sft_0"
  folder.mkdir()
  (folder / "metrics.jsonl").write_text('{"step": 0, "eval/accuracy": 0.5}\n')
  with pytest.raises(SettingError, match="sft_0: its metrics.jsonl has no reward/mean"):
    seeds.draw([str(folder)], tmp_path / "seeds.png")


def test_a_panel_for_each_task_with_the_numbers_of_each_seed(tmp_path, monkeypatch):
  pytest.importorskip("matplotlib")
  import matplotlib.axes

  for name, rewards in {
    "guess_0": (0.1, 0.4),
    "guess_1": (0.3, 0.2),
    "other_0": (1.0, 1.0),
    "short_0": (0.5,),
  }.items():
    folder = tmp_path / name
    folder.mkdir()
    lines = [{"step": 0, "eval/accuracy": rewards[0] / 2}]
    lines += [{"step": i + 1, "reward/mean": reward} for i, reward in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  drawn, markers = [], []
  plot = matplotlib.axes.Axes.plot

  def noted(axes, x, y, *more, **options):
    drawn.append((list(x), list(y)))
    markers.append(options.get("marker"))
    return plot(axes, x, y, *more, **options)

  monkeypatch.setattr(matplotlib.axes.Axes, "plot", noted)
  seeds.draw([str(path) for path in sorted(tmp_path.iterdir())], tmp_path / "seeds.png")
  assert drawn == [
    ([1, 2], [0.1, 0.4]),
    ([0], [0.05]),
    ([1, 2], [0.3, 0.2]),
    ([0], [0.15]),
    ([1, 2], [1, 1]),
    ([0], [0.5]),
    ([1], [0.5]),
    ([0], [0.25]),
  ]
  assert markers[::2] == ["", "", "", "_"]  # a line of one point would not be seen
  assert (tmp_path / "seeds.png").stat().st_size > 10_000
