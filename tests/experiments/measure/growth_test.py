"""The growth of cost: which workloads, that a run goes on where it was stopped, that its picture
shows every result.
"""

import json

import pytest
from absl import flags

from experiments.measure import benchmarks, growth, peer_commands


def test_one_thing_grows_at_a_time():
  points = growth.points()
  assert points.count(growth.SMALL) == 1
  for name, values in growth.LINES.items():
    assert [
      p[name] for p in points if growth.of_line({"workload": p}, name)
    ] != [] and growth.SMALL[name] in values
    assert {p[name] for p in points if growth.of_line({"workload": p}, name)} == set(values)
  for point in points:
    assert sum(point[name] != value for name, value in growth.SMALL.items()) <= 1
    benchmarks.get_config(",".join(f"{k}={v}" for k, v in point.items()))  # is a workload


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
  pytest.importorskip("matplotlib")
  values = type("Values", (), {"workdir": str(tmp_path), "vs": "trl", "peer": "python"})
  monkeypatch.setattr(flags, "FLAGS", values)
  asked, checked = [], []
  monkeypatch.setattr(peer_commands, "check_peer", lambda *peer: checked.append(peer))

  def measure(workload, system, peer):
    if len(asked) == 5 and not (tmp_path / "growth.png").exists() and len(results()) == 5:
      raise KeyboardInterrupt
    asked.append((workload, system))
    return {"step_s": float(workload["group"]), "system": system}

  def results():
    path = tmp_path / "growth.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

  monkeypatch.setattr(growth, "measure", measure)
  with pytest.raises(KeyboardInterrupt):
    growth.main([])
  asked_before = list(asked)
  asked.append(None)
  growth.main([])
  asked.remove(None)
  assert len(asked) == 2 * len(growth.points()) and asked[:5] == asked_before
  assert all(asked.count(one) == 1 for one in asked)
  growth.main([])  # nothing is left, and no peer is needed
  assert checked == [("trl", "python")] * 2
  assert (tmp_path / "growth.png").stat().st_size > 10_000


@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({"processor": "2 cores, Abacus 7"}, "processor: 2 cores, Abacus 7, here {}"),
    ({"version of jax": "0.1"}, "version of jax: 0.1, here {}"),
    (None, "processor: not told, here {}"),
  ],
)
def test_rows_of_another_machine_or_version_are_not_added_to(
  changed, said, tmp_path, monkeypatch, capsys
):
  pytest.importorskip("matplotlib")
  values = type("Values", (), {"workdir": str(tmp_path), "vs": None, "peer": "python"})
  monkeypatch.setattr(flags, "FLAGS", values)
  monkeypatch.setattr(growth, "measure", lambda *_: {"step_s": 1.0})
  growth.main([])
  path = tmp_path / "growth.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  here = growth.place()
  assert all(row["place"] == here for row in rows) and "cores, " in here["processor"]
  rows = [row | {"place": here | changed} if changed else row for row in rows]
  for row in rows if changed is None else ():
    del row["place"]
  written = "".join(json.dumps(row) + "\n" for row in rows)
  path.write_text(written)
  growth.main([])  # nothing is left to measure: it is drawn again
  path.write_text(written := written[: written.rindex("\n", 0, -1) + 1])
  capsys.readouterr()
  with pytest.raises(SystemExit):
    growth.main([])
  (name,) = changed or ("processor",)
  rest = "; use another --workdir"
  assert capsys.readouterr().err == (
    f"error: --workdir={tmp_path}: has results of another place ({said.format(here[name])}){rest}\n"
  )
  assert path.read_text() == written


def test_a_workdir_that_is_a_file_is_refused(tmp_path, monkeypatch, capsys):
  pytest.importorskip("matplotlib")
  (tmp_path / "file").touch()
  for name, reason in (("file", "File exists"), ("file/growth", "Not a directory")):
    folder = f"{tmp_path}/{name}"
    values = type("Values", (), {"workdir": folder, "vs": None, "peer": "python"})
    monkeypatch.setattr(flags, "FLAGS", values)
    with pytest.raises(SystemExit):
      growth.main([])
    said = f"error: --workdir={folder}: cannot be made ({reason}); use another folder\n"
    assert capsys.readouterr().err == said
