"""How a run ends: not with code 0 before its end, not before its children, and not in a folder that
is gone.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import tiny_runs
from conftest import ROOT, environment
from ml_collections import ConfigDict
from processes import gone

from experiments import arguments, run
from grpo_jax.config import sections
from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.io import storage
from grpo_jax.run import workdir
from grpo_jax.run.writer import Writer
from grpo_jax.sandbox.deadline import _warned
from grpo_jax.setup import defaults, loop_names, modules


def python(code: str, **more) -> subprocess.CompletedProcess:
  command = [sys.executable, "-c", code]
  return subprocess.run(
    command, cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=60, **more
  )


UNTIL_DONE = """
import atexit, os, subprocess, sys, threading, time
from experiments import arguments
from grpo_jax.run import leaving
with arguments.one_line_errors(), leaving.until_done():
  {body}
print("done")
"""


@pytest.mark.parametrize(
  "body, code, said",
  [
    ("pass", 0, ""),
    ("os._exit(0)", 1, "error: os._exit(0) was called before the run was at its end"),
    (
      "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(9)",
      1,
      "error: os._exit(0) was called",
    ),
    ("atexit.register(os._exit, 0); raise ValueError", 1, "error: os._exit(0) was called"),
    ("os._exit(7)", 7, ""),
    (
      "sys.exit(0)",
      2,
      "error: <string>:6: calls sys.exit(0) before the end; return or raise an error",
    ),
    ("sys.exit()", 2, "error: <string>:6: calls sys.exit(None) before the end"),
    ("raise SystemExit(False)", 2, "error: <string>:6: calls sys.exit(False)"),
    ("sys.exit(3)", 3, ""),
    ("os.fork() or os._exit(0); os.wait()", 0, ""),
  ],
)
def test_a_run_that_is_not_at_its_end_does_not_end_with_0(body, code, said):
  done = python(UNTIL_DONE.format(body=body))
  assert done.returncode == code and said in done.stderr, done
  assert (done.stdout == "done\n") == (code == 0)


def test_after_the_end_any_code_is_right():
  assert python(UNTIL_DONE.format(body="pass") + "os._exit(0)").returncode == 0


ORPHANS = """
import os, signal, subprocess, sys, time
from grpo_jax.run import leaving
with leaving.until_done():
  told, tell = os.pipe()
  forked = os.fork()
  if forked == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"])
    os.write(tell, b"ready")
    time.sleep(1000)
  started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
  os.read(told, 5)
  print(forked, started.pid, flush=True)
  {end}
"""


@pytest.mark.parametrize("end", ["pass", "raise ValueError"])
def test_processes_that_a_run_started_end_with_it(end):
  """Also one that ignores SIGTERM, its own child, and one in a session of its own; the pipes of the
  run are closed.
  """
  done = python(ORPHANS.format(end=end))
  first, warning = done.stdout.splitlines()
  assert all(gone(int(pid)) for pid in first.split())
  assert (
    warning.startswith("warning: ended what this run had started") and warning.count("(sleep)") == 2
  )


def test_a_forked_child_ends_where_the_run_is_killed():
  with subprocess.Popen(
    [sys.executable, "-c", ORPHANS.format(end="time.sleep(1000)")],
    cwd=ROOT,
    env=environment(1),
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    forked, started = map(int, process.stdout.readline().split())
    process.kill()
    assert gone(forked)
    with contextlib.suppress(ProcessLookupError):
      os.kill(started, signal.SIGKILL)  # what was started by exec is seen at an ordinary end alone


# -- folders


def test_a_folder_or_log_that_is_deleted_ends_the_run(tmp_path):
  log = ConfigDict(
    {"writers": (), "every": 1, "samples": 1, "samples_every": 0, "bucket_seconds": 60.0}
  )

  def put_another(folder: pathlib.Path, name: str) -> None:
    (folder / name).rename(folder / "kept")
    shutil.copy(folder / "kept", folder / name)

  ways = {
    "deleted": lambda folder, name: (folder / name).unlink(),
    "moved": lambda folder, name: (folder / name).rename(folder / "other"),
    "replaced": put_another,
    "folder": lambda folder, name: shutil.rmtree(folder),
    "folder moved": lambda folder, name: folder.rename(tmp_path / "elsewhere"),
  }
  for name in ("metrics.jsonl", "samples.jsonl", "lock"):
    for way, do in ways.items():
      shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
      folder = tmp_path / f"{name} {way}"
      with workdir.locked(str(folder)) as check, Writer(str(folder), log, 3) as writer:
        write = {
          "metrics.jsonl": lambda writer=writer: writer.step(0, {"loss": 1.0}),
          "samples.jsonl": lambda writer=writer: writer.samples(1, [{"question": "?"}]),
          "lock": check,
        }[name]
        write()
        do(folder, name)
        with pytest.raises(
          CheckpointError, match=f"workdir=.*: its {name} was deleted, moved or replaced"
        ) as e:
          write()
        assert e.value.code == 2  # launchers do not begin anew in its place


def test_a_home_directory_is_found_in_flags_and_settings(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert (
    storage.expanded("--out", "~/x") == f"{tmp_path}/x"
    and storage.expanded("--out", "a/~") == "a/~"
  )
  with pytest.raises(
    SettingError, match=r"--out='~nobody_here/x': there is no such user; write ./~nobody_here/x"
  ):
    storage.expanded("--out", "~nobody_here/x")
  assert (
    arguments._expanded("path", ["~/a", "b"]) == [f"{tmp_path}/a", "b"]
    and arguments._expanded("out", None) is None
  )
  config = defaults.get_config()
  config.init_from, config.data.path, config.data.template = "~/model", "~", "~{question}"
  sections.expand(config)
  assert (config.init_from, config.data.path, config.data.template) == (
    f"{tmp_path}/model",
    str(tmp_path),
    "~{question}",
  )


def test_a_loop_is_given_its_folder_from_the_root(monkeypatch, tmp_path):
  found = []
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  loop = type("Loop", (), {"train": staticmethod(lambda config, folder: found.append(folder))})
  monkeypatch.setattr(loop_names, "find", lambda name: loop)
  monkeypatch.setattr(run, "draw", found.append)
  for given in ("runs/1", "~/1", "gs://bucket/1"):
    with contextlib.suppress(SettingError):  # gcsfs may be missing
      run.start(defaults.get_config(), given)
  places = [f"{tmp_path}/runs/1", f"{tmp_path}/home/1", "gs://bucket/1"][: len(found) // 2]
  assert found == [each for place in places for each in (place, place)] and len(places) >= 2


def test_a_file_that_changes_the_working_directory_is_changed_back(tmp_path, capsys):
  _warned.clear()
  (tmp_path / "mine.py").write_text(
    "import os\nos.chdir('/')\ndef f(example, completion):\n  return 1.0\n"
  )
  before = os.getcwd()
  modules.function(f"{tmp_path}/mine.py:f", "grpo_jax.rewards", "eval.reward")
  assert os.getcwd() == before
  assert (
    f"warning: eval.reward='{tmp_path}/mine.py:f' changed the working directory to /"
    in capsys.readouterr().out
  )


# -- whole runs

REWARDS = """
import os, signal, subprocess, sys, time

calls = []

def reward(example, completion):
  calls.append(1)
  if len(calls) > 30:
    {body}
  return sum(completion.tokens) % 5 / 4
"""


@pytest.fixture
def start(tmp_path):
  """Runs two steps with a reward that does something, in a relative folder, and returns what came
  of it.
  """

  def run_it(body: str, folder: str = "runs/1", **more) -> subprocess.CompletedProcess:
    (tmp_path / "reward.py").write_text(REWARDS.format(body=body))
    rows = (("mine", f"{tmp_path}/reward.py:reward", 1.0),)
    changes = {
      "steps": 2,
      "eval.problems": 4,
      "eval.batch": 4,
      "eval.samples": 0,
      "rewards.functions": rows,
    } | more
    (tmp_path / "config.py").write_text(tiny_runs.source(changes))
    command = [
      sys.executable,
      "-m",
      "experiments.run",
      f"--config={tmp_path}/config.py",
      f"--workdir={folder}",
    ]
    env = environment(1, PYTHONPATH=f"{ROOT}", HOME=str(tmp_path / "home"))
    return subprocess.run(
      command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )

  return run_it


def numbers(folder: pathlib.Path) -> list[dict]:
  """The metrics of a run, without timings."""
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  return [
    {k: v for k, v in line.items() if not k.startswith(("time/", "tokens_per_s"))} for line in lines
  ]


@pytest.mark.slow
@pytest.mark.long
def test_a_run_whose_reward_misbehaves_is_the_run_without_it(start, tmp_path):
  done = start("pass")
  assert done.returncode == 0, done.stderr
  (tmp_path / "runs/1").rename(tmp_path / "plain")
  plain = numbers(tmp_path / "plain")
  for body in (
    "os.chdir('/')",
    "os.fork() or time.sleep(1000)",
    "subprocess.Popen(['sleep', '1000'])",
  ):
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    done = start(body)
    assert done.returncode == 0 and "warning: " in done.stdout, (body, done.stderr)
    assert numbers(tmp_path / "runs/1") == plain, body
    assert {path.name for path in (tmp_path / "runs/1").iterdir()} == {
      p.name for p in (tmp_path / "plain").iterdir()
    }
  done = start("pass", "~/1")
  assert (
    done.returncode == 0
    and (tmp_path / "home/1/result.json").exists()
    and not (tmp_path / "~").exists()
  )


@pytest.mark.slow
def test_a_run_that_did_not_end_says_so(start, tmp_path):
  done = start("os._exit(0)")
  # faults of one reward
  assert done.returncode == 0 and "called os._exit(0)" in done.stdout, done.stderr
  assert numbers(tmp_path / "runs/1")[-1]["step"] == 2
  shutil.rmtree(tmp_path / "runs")
  done = start(f"__import__('shutil').rmtree({str(tmp_path / 'runs')!r}, ignore_errors=True)")
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
  assert "was deleted, moved or replaced while this run used it" in done.stderr
