"""A run that is killed at any moment and started again is, bit for bit, the run that was not
killed.

Real processes of `python -m experiments.run` on a tiny model. The one that is to die gets its
signal from itself, at the n-th time that it enters a phase, so that every moment can be tried on a
machine of any speed.
"""

import json
import shutil
import signal
import subprocess
import sys

import conftest
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny_runs

pytestmark = pytest.mark.slow

CONFIG = tiny_runs.source(
  {
    "steps": 8,
    "data.redraw": 0.5,
    "learner.warmup": 3,
    "eval.reward": tiny_runs.PARITY,
    "eval.problems": 8,
    "eval.batch": 8,
    "eval.samples": 0,
    "eval.every": 4,
    "checkpoint.every": 2,
    "log.measure_every": 2,
  }
)

# `python -c` this PHASE COUNT SECONDS SIGNAL arguments...: the run, which gets the signal so many
# seconds after it has entered the phase for the COUNTth time. What is being saved when it enters is
# complete by then.
STRUCK = """
import os, runpy, sys, threading, time
phase, count, seconds, number = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
sys.argv[1:] = sys.argv[5:]
from grpo_jax.run import writer as metrics
original, entered = metrics.Writer.phase, []
def strike():
  os.kill(os.getpid(), number)
def patched(writer, name, arrays=None):
  if name == phase:
    entered.append(name)
    if len(entered) == count:
      while list((writer.workdir / "checkpoints").glob("*tmp*")):
        time.sleep(0.01)
      threading.Timer(seconds, strike).start() if seconds else strike()
  return original(writer, name, arrays)
metrics.Writer.phase = patched
runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
"""


CACHED = {
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


class Runs:
  """Starts runs of one config; compiled programs are kept from one to the next."""

  def __init__(self, folder, config=CONFIG):
    self.folder = folder
    self.config = folder / "tiny.py"
    self.config.write_text(config)

  def arguments(self, workdir, *more):
    return [f"--config={self.config}", f"--workdir={self.folder / workdir}", *more]

  def start(self, *command):
    streams = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 600}
    return subprocess.run(
      command, cwd=conftest.ROOT, env=conftest.environment(1, **CACHED), **streams
    )

  def whole(self, workdir, *more):
    """The command as a person types it."""
    return self.start(sys.executable, "-m", "experiments.run", *self.arguments(workdir, *more))

  def finish(self, workdir):
    done = self.whole(workdir)
    assert done.returncode == 0, done.stderr
    return done

  def struck(self, workdir, phase, count, seconds=0.0, number=signal.SIGKILL, more=()):
    """The same, struck by a signal."""
    strike = [phase, str(count), str(seconds), str(int(number))]
    done = self.start(sys.executable, "-c", STRUCK, *strike, *self.arguments(workdir, *more))
    if number == signal.SIGKILL:
      assert done.returncode == -signal.SIGKILL, (phase, done.returncode, done.stderr)
    return done

  def numbers(self, workdir):
    """All that a run leaves, but timings: metrics, samples, the last checkpoint, the exported
    weights.
    """
    path = self.folder / workdir
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    timing = ("time/", "tokens_per_s/")
    with ocp.PyTreeCheckpointer() as checkpointer:
      state = checkpointer.restore(
        (path / "checkpoints" / str(self.steps_saved(workdir)[-1]) / "state").absolute()
      )
    return {
      "metrics": [{k: v for k, v in line.items() if not k.startswith(timing)} for line in lines],
      "samples": (path / "samples.jsonl").read_text(),
      "state": [
        (jax.tree_util.keystr(k), np.asarray(x).tobytes())
        for k, x in jax.tree.leaves_with_path(state)
      ],
      "weights": (path / "export" / "model.safetensors").read_bytes(),
      "result": {
        k: v for k, v in json.loads((path / "result.json").read_text()).items() if k != "wall_s"
      },
    }

  def steps_saved(self, workdir):
    return sorted(
      int(p.name) for p in (self.folder / workdir / "checkpoints").iterdir() if p.name.isdigit()
    )

  def assert_as_if_not_struck(self, workdir, expected):
    got = self.numbers(workdir)
    for name in expected:
      assert got[name] == expected[name], name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  return Runs(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def expected(runs):
  """What a run that nothing happens to leaves."""
  runs.finish("undisturbed")
  numbers = runs.numbers("undisturbed")
  first, last = (
    next(m for m in ms if "reward/mean" in m)
    for ms in (numbers["metrics"], numbers["metrics"][::-1])
  )
  # something is learned, so something can go wrong
  assert first["grad_norm"] > 0 and last["grad_norm"] > 0
  return numbers


def test_samples_show_what_each_token_is_and_got(expected):
  rows = [json.loads(line) for line in expected["samples"].splitlines()]
  assert rows and {row["step"] for row in rows} == set(range(1, 9))
  for row in rows:
    assert len(row["tokens"]) == len(row["advantages"]) == len(row["logprobs"]) > 0
    assert "".join(row["tokens"]).split() == row["completion"].split()
    assert (
      row["advantage"] == pytest.approx(np.mean(row["advantages"]), abs=1e-4)
      and max(row["logprobs"]) <= 0
    )


def test_killed_in_sampling_learning_and_saving(runs, expected):
  runs.struck("killed", "sample", 4)
  assert runs.steps_saved("killed")[-2:] == [0, 2]
  runs.struck("killed", "learn", 4)
  assert runs.steps_saved("killed")[-2:] == [2, 4]  # an older one is deleted in the background
  runs.struck("killed", "save", 1, 0.02)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", expected)


@pytest.mark.long
def test_killed_ten_times(runs, expected):
  halves = 0
  for strike in (
    ("eval", 1),
    ("save", 1, 0.01),
    ("sample", 2),
    ("save", 1, 0.02),
    ("learn", 1),
    ("save", 1, 0.05),
    ("score", 1),
    ("save", 1, 0.1),
    ("measure", 1),
    ("export", 1),
  ):
    runs.struck("ten", *strike)
    halves += len(list((runs.folder / "ten" / "checkpoints").glob("*tmp*")))
  assert halves, "no kill left a half-written checkpoint, so none came in the middle of a save"
  runs.finish("ten")
  runs.assert_as_if_not_struck("ten", expected)
  runs.finish("ten")  # a finished run may be asked for once more
  runs.assert_as_if_not_struck("ten", expected)


@pytest.mark.parametrize(
  "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_saves_and_says_how_to_go_on(runs, expected, number):
  stopped = runs.struck(number.name, "learn", 3, number=number)
  assert "Traceback" not in stopped.stderr, stopped.stderr
  said = stopped.stdout.replace("\n", " ")
  assert (
    f"{number.name}: saved after step 3 of 8" in said and "run the same command again" in said
  ), stopped.stdout
  assert runs.steps_saved(number.name)[-1] == 3
  runs.finish(number.name)
  runs.assert_as_if_not_struck(number.name, expected)


@pytest.mark.parametrize(
  ("phase", "count", "saved"),
  [
    pytest.param("sample", 6, 5, marks=pytest.mark.long),
    pytest.param("eval", 2, 4, marks=pytest.mark.long),
    pytest.param("eval", 1, 0, marks=pytest.mark.long),
  ],
)
def test_a_signal_before_rewards_are_counted_ends_the_step_where_it_began(
  runs, expected, phase, count, saved
):
  workdir = f"{phase} {count}"
  stopped = runs.struck(workdir, phase, count, number=signal.SIGTERM)
  said = stopped.stdout.replace("\n", " ")
  assert (
    f"SIGTERM: saved after step {saved} of 8" if saved else "SIGTERM: nothing was saved yet"
  ) in said, said
  assert "Traceback" not in stopped.stderr and (runs.steps_saved(workdir) or [0])[-1] == saved
  runs.finish(workdir)
  runs.assert_as_if_not_struck(workdir, expected)


@pytest.mark.long
def test_two_runs_started_together_in_one_folder(runs, expected):
  """One runs and one is refused; the folder is that of one run."""
  for n in range(10):
    workdir = f"together {n}"
    command = [sys.executable, "-m", "experiments.run", *runs.arguments(workdir)]
    pipes = {
      "stdout": subprocess.PIPE,
      "stderr": subprocess.PIPE,
      "text": True,
      "stdin": subprocess.DEVNULL,
    }
    environment = conftest.environment(1, **CACHED)
    both = [
      subprocess.Popen(command, cwd=conftest.ROOT, env=environment, **pipes) for _ in range(2)
    ]
    done = [(process, *process.communicate(timeout=600)) for process in both]
    (runner, _, _), (refused, _, said) = sorted(done, key=lambda found: found[0].returncode)
    assert (runner.returncode, refused.returncode) == (0, 2), [found[2] for found in done]
    assert said.count("\n") == 1 and f"is in use by process {runner.pid} on" in said, said
    runs.assert_as_if_not_struck(workdir, expected)
    shutil.rmtree(runs.folder / workdir)


# `python -c` this PHASE arguments...: the run, on a disk that takes files of at most 1 kB from the
# first time that it enters that phase. How large the files of a checkpoint are is a matter of
# chance.
NO_LARGE_FILES = """
import resource, runpy, sys
full = sys.argv[1]
sys.argv[1:] = sys.argv[2:]
from grpo_jax.run import writer as metrics
original = metrics.Writer.phase
def patched(writer, name, arrays=None):
  if name == full:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
  return original(writer, name, arrays)
metrics.Writer.phase = patched
runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
  "phase, safe", [("save", 6), pytest.param("export", 8, marks=pytest.mark.long)]
)
def test_a_full_disk_loses_nothing_that_was_saved(runs, expected, phase, safe):
  workdir = f"full when {phase} begins"
  shutil.copytree(
    runs.folder / "undisturbed", runs.folder / workdir, ignore=shutil.ignore_patterns("8", "export")
  )
  stopped = runs.start(sys.executable, "-c", NO_LARGE_FILES, phase, *runs.arguments(workdir))
  assert stopped.returncode == 75, stopped.stderr  # not that of bad input: the same command goes on
  assert "Traceback" not in stopped.stderr, stopped.stderr
  (error,) = [line for line in stopped.stderr.splitlines() if line.startswith("error:")]
  assert "File too large" in error and str(runs.folder / workdir) in error
  assert f"step {safe} is complete" in error or phase == "export", error
  assert runs.steps_saved(workdir)[-1] == safe
  runs.finish(workdir)
  runs.assert_as_if_not_struck(workdir, expected)


ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=1m none "$1"
"$2" -m experiments.run --config="$3" --workdir="$1/run" || echo "exit $?" >&2
ls "$1/run/checkpoints" >&2
mount -o remount,size=64m "$1"
"$2" -m experiments.run --config="$3" --workdir="$1/run" 2> /dev/null
cp -r "$1/run" "$4"
"""


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while(runs, expected, tmp_path):
  if subprocess.run(
    ["unshare", "-m", "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True
  ).returncode:
    pytest.skip("needs the right to mount a small disk")
  script = [tmp_path, sys.executable, runs.config, runs.folder / "small"]
  done = runs.start("unshare", "-m", "sh", "-c", ON_A_SMALL_DISK, "sh", *map(str, script))
  assert done.returncode == 0 and "exit 75" in done.stderr, done.stderr
  assert "No space left on device" in done.stderr and "Traceback" not in done.stderr, done.stderr
  runs.assert_as_if_not_struck("small", expected)


def test_the_workdir_of_another_config_is_refused(runs, expected):
  done = runs.whole("undisturbed", "--config.learner.lr=2.0", "--config.log.every=2")
  assert done.returncode == 2 and "learner.lr was 0.01, is 2.0" in done.stderr, done.stderr
  assert "Traceback" not in done.stderr and "log.every" not in done.stderr.splitlines()[-1]
  runs.assert_as_if_not_struck("undisturbed", expected)


@pytest.mark.long
def test_a_run_with_few_programs_that_are_kept_goes_on_as_it_was(runs):
  """The sizes that were made are saved, and the programs of them are not compiled again."""
  few = ("--config.learner.sizes=3", "--config.compilation_cache=workdir")
  assert runs.whole("few", *few).returncode == 0
  struck = runs.struck("few, killed", "learn", 6, more=few)
  assert "0 read from it" in struck.stdout
  done = runs.whole("few, killed", *few)
  assert done.returncode == 0 and "programs: 0 compiled" in done.stdout, done.stdout
  runs.assert_as_if_not_struck("few, killed", runs.numbers("few"))
  about = json.loads((runs.folder / "few" / "checkpoints" / "8" / "about" / "metadata").read_text())
  assert 1 <= len(about["extra"]["sizes"]["policy"]["learner"]) <= 3
