"""Tests the command that makes one page of several runs."""

import json
import re
import types

import pytest

from experiments import report


def begun(folder, finished=False):
  folder.mkdir(exist_ok=True)
  (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward/mean": 0.5}) + "\n")
  if finished:
    (folder / "result.json").write_text("{}")
  return str(folder)


def test_a_page_of_two_runs(program, tmp_path):
  runs = [begun(tmp_path / name, finished=True) for name in "ab"]
  out = tmp_path / "page.html"
  done = program("experiments.report", *runs, f"--out={out}", "--every=1")  # both have finished
  assert done.returncode == 0 and done.stdout.strip() == str(out), done.stderr
  assert '"seconds":0' in out.read_text()
  assert program("experiments.report", *runs).stdout.strip() == f"{runs[0]}/compared.html"
  assert not (tmp_path / "a" / "report.html").exists()  # the page of that run alone
  assert program("experiments.report", runs[0]).stdout.strip() == f"{runs[0]}/report.html"


def test_a_log_is_not_overwritten(program, tmp_path):
  run = begun(tmp_path / "a")
  log = (tmp_path / "a" / "metrics.jsonl").read_bytes()
  done = program("experiments.report", run, f"--out={run}/metrics.jsonl")
  assert done.returncode == 2 and "ends with .html" in done.stderr and done.stderr.count("\n") == 1
  assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == log


def test_only_pages_of_runs_are_replaced(program, tmp_path):
  """Writes its own page anew, also over one of other runs, and an empty file's."""
  one, two, three = (begun(tmp_path / name, finished=True) for name in "abc")
  page = tmp_path / "a" / "compared.html"
  page.write_text("<!doctype html>\n<title>mine</title>\n")
  done = program("experiments.report", one, two)
  assert done.returncode == 2 and done.stderr == (
    f"error: --out='{page}': is there already, and no page of runs; use another name\n"
  )
  assert "mine" in page.read_text()
  page.write_text("")
  for runs in ([one, two], [one, three]):
    assert program("experiments.report", *runs).stdout.strip() == str(page)
  assert '"name":"c"' in page.read_text()


@pytest.mark.parametrize(
  "arguments, said",
  [
    ([], "DIR: 0 folders; give 1 to 32 folders of runs"),
    (
      ["nowhere"],
      "DIR='nowhere': has no metrics.jsonl; give the --workdir of a run that has begun",
    ),
    (["--every=-1"], "every"),
  ],
)
def test_what_is_no_run_is_refused_in_one_line(program, arguments, said):
  done = program("experiments.report", *arguments)
  assert done.returncode == 2 and re.fullmatch(r"error: .*\n", done.stderr) and said in done.stderr


def test_following_a_run_outlasts_a_disk_that_fails_for_a_while(tmp_path, monkeypatch, capsys):
  (tmp_path / "metrics.jsonl").write_text("{}\n")
  told = iter([OSError(116, "Stale file handle"), tmp_path / "report.html", KeyboardInterrupt()])

  def write(folders, out, seconds):
    if isinstance(found := next(told), BaseException):
      raise found
    return found

  monkeypatch.setattr(report.run_page, "write", write)
  monkeypatch.setattr(report.run_page, "end_of", lambda folder: None)
  monkeypatch.setattr(report.time, "sleep", lambda seconds: None)
  monkeypatch.setattr(report.flags, "FLAGS", types.SimpleNamespace(every=5, out=""))
  with pytest.raises(SystemExit) as end:
    report.main(["report", str(tmp_path)])
  assert end.value.code == 130
  warning, page = capsys.readouterr().out.splitlines()
  assert warning == "warning: Stale file handle; tried again in 5 s" and page.endswith(
    "report.html"
  )


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
  (tmp_path / "metrics.jsonl").write_text("{}\n")

  def full(folders, out, seconds):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(report.run_page, "write", full)
  monkeypatch.setattr(report.run_page, "end_of", lambda folder: {})
  monkeypatch.setattr(report.flags, "FLAGS", types.SimpleNamespace(every=0, out=""))
  with pytest.raises(SystemExit) as end:
    report.main(["report", str(tmp_path)])
  assert end.value.code == 2
  assert re.fullmatch(
    r"error: --out='.*': no page .*\(No space left on device\)\n", capsys.readouterr().err
  )
