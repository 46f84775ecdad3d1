"""The drill: killed runs leave what an undisturbed one leaves, and a difference is told."""

import json
import shutil
import signal

import pytest

from experiments.measure import drill

SMALL = [
  "--config=experiments/arithmetic.py",
  *(
    f"--config.{s}"
    for s in (
      "steps=6",
      "data.prompts=4",
      "sampler.group=4",
      "sampler.max_length=24",
      "eval.batch=8",
    )
  ),
  *(
    f"--config.{s}"
    for s in ("eval.problems=8", "eval.samples=0", "checkpoint.every=2", "log.writers=()")
  ),
]


@pytest.mark.slow
@pytest.mark.long
def test_five_kills(program, tmp_path):
  done = program(
    "experiments.measure.drill", f"--workdir={tmp_path}/drill", "--kills=5", *SMALL, timeout=1200
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "drill" / "drill.json").read_text())
  assert len(report["kills"]) == 5 and "5 kills in" in done.stdout
  assert all(kill["doing"] for kill in report["kills"])


def write(folder, **changes):
  """What a finished run leaves, with changes."""
  files = {
    "metrics.jsonl": '{"step": 1, "loss": 0.5, "time/learn": 3.0}\n{"step": 2, "loss": 0.25}\n',
    "samples.jsonl": '{"step": 1}\n',
    "result.json": '{"steps": 2, "wall_s": 7.5}',
    "checkpoints/2/about/metadata": '{"step": 2, "data": {"index": 4}, "arrays": {"policy.w": "00ff00ff"}}',
    "checkpoints/1/about/metadata": '{"step": 1, "data": {}, "arrays": {}}',
    "export/model.safetensors": "numbers",
  }
  for name, text in (files | changes).items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
  return drill.left(folder)


def test_timings_may_differ_and_nothing_else(tmp_path):
  whole = write(tmp_path / "whole")
  timings = (
    '{"step": 1, "loss": 0.5, "time/learn": 9.0, "tokens_per_s/step": 1}\n{"step": 2, "loss": '
    "0.25}\n"
  )
  other = write(
    tmp_path / "same", **{"metrics.jsonl": timings, "result.json": '{"steps": 2, "wall_s": 99}'}
  )
  assert drill.differences(whole, other) == []
  for name, file, text in (
    ("metrics", "metrics.jsonl", '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.251}\n'),
    ("samples", "samples.jsonl", ""),
    ("result", "result.json", '{"steps": 3}'),
    (
      "checkpoint",
      "checkpoints/2/about/metadata",
      '{"step": 2, "data": {"index": 4}, "arrays": {"policy.w": "0"}}',
    ),
    ("weights", "export/model.safetensors", "other"),
  ):
    assert drill.differences(whole, write(tmp_path / name, **{file: text})) == [name]
    shutil.rmtree(tmp_path / name)


def test_what_a_run_was_doing(tmp_path):
  log = tmp_path / "log.txt"
  for text, what in (
    ("", "starting"),
    ("starting: importing jax\n", "starting"),
    ("going on from step 2 of x\nsample ...\nlearn ... (compiles its program 1)\n", "learn"),
    ("learn ...\nstep 3/6  reward 0.1\n", "between phases"),
  ):
    log.write_text(text)
    assert drill.doing(log) == what


def test_only_what_is_killed_here_counts_as_killed(tmp_path):
  """Tells its kill from that of a process that ran out of memory, by the same signal."""
  log = tmp_path / "log.txt"
  assert drill.start(["sleep", "60"], log, 0.1) == (-signal.SIGKILL, 0.1)
  assert drill.start(["sh", "-c", "kill -9 $$"], log, 60) == (-signal.SIGKILL, None)
  assert drill.start(["true"], log, None) == (0, None)


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (["--kills=3"], "the following arguments are required: --workdir"),
    (["--workdir=WORK"], "--config is missing"),
    (["--workdir=WORK", "--config"], "--config is missing"),
    (["--workdir=WORK", "--config.steps=3"], "--config is missing"),
    (["--workdir=FULL", "--config", "x.py"], "is not empty; give a new folder"),
    (["-config=x.py", "--workdir", "FULL"], "is not empty; give a new folder"),
    (["--workdir=WORK", "--config=x.py", "--kills=0"], "--kills=0: at least 1"),
    (["--workdir=FULL", "--config=x.py"], "is not empty; give a new folder"),
    (["--workdir=FULL/mine", "--config=x.py"], "full/mine: cannot be made (File exists); use"),
  ],
)
def test_bad_input_is_one_line(program, tmp_path, args, message):
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "mine").write_text("")
  named = [a.replace("WORK", f"{tmp_path}/work").replace("FULL", f"{tmp_path}/full") for a in args]
  done = program("experiments.measure.drill", *named)
  assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
  assert message in done.stderr and not (tmp_path / "work").exists()


def test_a_tilde_in_the_workdir_is_the_home_directory(program, tmp_path):
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "mine").touch()
  flags = ["--workdir=~/full", "--config=x.py"]
  done = program("experiments.measure.drill", *flags, HOME=str(tmp_path))
  assert done.returncode == 2
  assert done.stderr == f"error: --workdir={tmp_path}/full: is not empty; give a new folder\n"
