"""Runs an experiment; the same command again resumes it where it was stopped.

    python -m experiments.run --config=FILE[:arg=value,...] --workdir=DIR
    [--config.section.name=value ...]

On several hosts, run the same command on each of them, with --distributed (on a TPU pod or a
cluster that JAX knows) or with --coordinator, --processes and --process. DIR must then be one
folder that all hosts see, on a shared disk or in a bucket, gs://BUCKET/FOLDER. When one host fails
or is killed, all end within seconds and say which one and why (grpo_jax/distributed/lifeline.py).
Bad input ends the program with one line on stderr and exit code 2.
"""

import functools
import glob
import os
from collections.abc import Callable, Sequence

from absl import app, flags, logging
from ml_collections import ConfigDict

from experiments import arguments, stages
from experiments.stages import Stage
from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.run import leaving

# Seconds without a sign of life after which jax takes a host for dead and ends the others, with a
# page of C++ text. The lifeline ends them earlier.
HEARTBEAT_SECONDS = 100
DAY = 24 * 3600  # seconds
# Collectives between processes on CPUs (gloo) must run in the same order on all of them. With this
# scheduler of XLA they do not: the first update of experiments/arithmetic.py fails with "collective
# mismatch".
ORDER_FLAG = "xla_cpu_enable_concurrency_optimized_scheduler"


def main(argv: list[str]) -> None:
  """Runs the experiment that the flags describe."""
  del argv
  logging.set_verbosity(logging.WARNING)  # checkpoints and backends log every step they take
  values = flags.FLAGS
  if not values.workdir:
    arguments.fail(
      "--workdir is missing: the folder of the run's checkpoints, metrics and samples, as in "
      "--workdir=runs/1"
    )
  with arguments.one_line_errors(), leaving.until_done():
    check_hosts(values.coordinator, values.processes, values.process, values.distributed)
    join = None
    if values.distributed or values.coordinator:
      join = functools.partial(join_hosts, values.coordinator, values.processes, values.process)
    start(values.config, values.workdir, join)


def start(config: ConfigDict, workdir: str, join: Callable[[], None] | None = None) -> None:
  """Runs `config.loop` in `workdir`, after the run of `config.first` if there is one (stages.py).

  Args:
    config: of the experiment, unchecked.
    workdir: folder of the run.
    join: makes this process one of several, before anything else.
  """
  if not join:
    check_command(config, workdir)
  print("starting: importing jax, loading weights and data", flush=True)
  from grpo_jax.distributed import inputs, sharding  # imports jax
  from grpo_jax.distributed.lifeline import Lifeline

  if join:
    join()
  else:
    runs = [run.config for run in stages.divide(config, workdir)]
    sharding.split_cpu(config.mesh, [size for run in runs for size in batches(run)])

  with Lifeline():
    inputs.check_hosts(
      inputs.describe_settings(config) | {"--workdir": repr(workdir)} | inputs.describe_versions()
    )
    # again: with several hosts this is the first time, so that a mistake on one of them ends all
    check_command(config, workdir)
    # absolute, since user code may change the directory later
    workdir = os.fspath(storage.absolute(storage.expanded("--workdir", workdir)))
    make_runs(stages.divide(config, workdir))


def batches(config: ConfigDict) -> tuple[int, ...]:
  """Returns sizes that the devices of a run have to divide; 0 stands for none."""
  minibatch = config.data.prompts // config.learner.minibatches
  pairs = config.iterative.pairs if config.loop == "iterative" else 0
  return minibatch, config.learner.microbatch, config.sampler.carry, config.eval.batch, pairs


def make_runs(runs: Sequence[Stage]) -> None:
  """Makes each run after the one that it starts from, and draws its curves; a signal ends all."""
  from experiments import later as later_run  # imports jax
  from grpo_jax.distributed import hosts
  from grpo_jax.loops.run import recorded
  from grpo_jax.run import heap, signals, workdir
  from grpo_jax.setup import loop_names, resolve, unread

  trains, experiments = [], []
  for run in runs:
    with stages.named(run, runs):
      trains.append(loop_names.find(run.config.loop))
      experiments.append(resolve.resolve(run.config))
  done = [any(hosts.gather(stages.is_done(run))) for run in runs[:-1]] + [False]
  for i in range(1, len(runs)):
    if not done[i - 1]:  # otherwise the later run starts at once
      with stages.named(runs[i], runs):
        folders = [run.workdir for run in runs[:i]]
        later_run.check(experiments[i], later_run.Earlier(experiments[:i], folders))
  if len(runs) > 1:  # a single one does it itself
    for experiment, run in zip(experiments, runs):
      ours = recorded(experiment), experiment.own_defaults(), unread.names(experiment)
      workdir.check_owner(run.workdir, *ours, experiment.kind)
  for run, later in zip(runs, runs[1:]):
    with stages.named(later, runs):
      stages.check_ended(run, later)
  for loop, experiment, run, was_done in zip(trains, experiments, runs, done, strict=True):
    before_last = run is not runs[-1]
    if was_done:
      continue
    if before_last:
      print(f"first the run in {run.workdir}: {run.config.steps} steps", flush=True)
    signals.forget()
    with stages.named(run, runs):
      loop.train(experiment, run.workdir)
    draw(run.workdir)
    if before_last and not any(hosts.gather(stages.is_done(run))):  # a signal ended it
      return
    if before_last and any(hosts.gather(bool(signals.asked()))):  # or came when it was done
      print(f"the run in {run.workdir} is done; {signals.how_to_resume()}", flush=True)
      return
    heap.release()


def check_command(config: ConfigDict, workdir: str) -> None:
  """Refuses settings and a workdir that are wrong by themselves, before jax is imported."""
  stages.divide(config, workdir)
  kinds.check_value("--workdir", workdir)
  storage.check("--workdir", workdir)


def check_hosts(
  coordinator: str | None, processes: int | None, process: int | None, distributed: bool
) -> None:
  """Refuses flags of several hosts that contradict each other, before jax is imported."""
  if coordinator is not None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
      raise SettingError(
        f"--coordinator={coordinator}: use HOST:PORT with a port from 1 to 65535, as in "
        "10.0.0.2:1234"
      )
    if processes is None or process is None:
      raise SettingError(
        f"--coordinator={coordinator}: needs --processes (how many) and --process (this one, from "
        "0), too"
      )
  for flag, value in (("processes", processes), ("process", process)):
    if value is not None and not (coordinator or distributed):
      raise SettingError(
        f"--{flag}={value}: goes with --coordinator=HOST:PORT or --distributed, and there is "
        "neither"
      )
  if processes is not None and not 1 <= processes <= kinds.LARGEST_WHOLE:
    raise SettingError(f"--processes={processes}: use a whole number of at least 1")
  if process is not None and not 0 <= process < (processes or kinds.LARGEST_WHOLE):
    most = f"less than --processes={processes}" if processes else "of at least 0"
    raise SettingError(
      f"--process={process}: processes are counted from 0; use a whole number {most}"
    )


def join_hosts(coordinator: str | None, processes: int | None, process: int | None) -> None:
  """Makes this process one of several; no device may have been used before."""
  import jax

  if on_cpu(os.environ.get("JAX_PLATFORMS", "")) and ORDER_FLAG not in os.environ.get(
    "XLA_FLAGS", ""
  ):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{ORDER_FLAG}=false".strip()

  jax.distributed.initialize(
    coordinator,
    processes,
    process,
    heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    # the others wait for process 0, which may write an export for long; heartbeats end them sooner
    shutdown_timeout_seconds=DAY,
  )


def on_cpu(platforms: str) -> bool:
  """Returns whether jax will compute on the CPU, given the value of JAX_PLATFORMS."""
  accelerators = ("/dev/accel*", "/dev/vfio/*", "/dev/nvidia[0-9]*", "/dev/kfd")
  return platforms.split(",")[0] == "cpu" if platforms else not any(map(glob.glob, accelerators))


def draw(workdir: str) -> None:
  """Writes the pages and the picture of a run; if that fails, it has succeeded all the same."""
  import jax

  if jax.process_index() != 0:
    return
  from grpo_jax.reports import inspector, run_page

  arguments.draw_to_files()
  _try_to_draw("samples.html", inspector.write, workdir)
  _try_to_draw("report.html", run_page.write_own, workdir)
  try:
    from grpo_jax.reports import plots
  except ImportError:
    print(
      "no curve.png: matplotlib is missing (pip install matplotlib; python -m "
      f"grpo_jax.reports.plots {workdir})"
    )
  else:
    _try_to_draw("curve.png", plots.draw, workdir)


def _try_to_draw(name: str, draw: Callable[[str], object], workdir: str) -> None:
  """Draws a report of a finished run, or prints why it cannot, in one line."""
  try:
    draw(workdir)
  except Exception as error:  # a full disk, matplotlib, a damaged file
    reason = " ".join(str(error).split())[:200]
    print(f"warning: no {name}: {type(error).__name__}: {reason}", flush=True)


if __name__ == "__main__":
  arguments.define_experiment()
  flags.DEFINE_string(
    "workdir", None, "Folder of the run: checkpoints, metrics, samples. Made where it is missing."
  )
  flags.DEFINE_bool("distributed", False, "Join the other hosts of a TPU pod or cluster.")
  flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, where JAX cannot find the others by itself."
  )
  flags.DEFINE_integer("processes", None, "With --coordinator: how many processes there are.")
  flags.DEFINE_integer("process", None, "With --coordinator: which of them this is, from 0.")
  app.run(main, flags_parser=arguments.parse_flags)
