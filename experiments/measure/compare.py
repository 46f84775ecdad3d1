"""Runs several objectives at several learning rates and seeds, and compares them on one page.

    python -m experiments.measure.compare --workdir=DIR [--draw_only] \\
      --config=experiments/measure/comparisons.py[:quick]

Runs that are there already are laid over one another by `python -m experiments.report DIR DIR`.

Runs follow one another: each is `python -m experiments.run` in DIR/ARM/LR/SEED, with its output in
log.txt there. Stop it at any time; the same command resumes and leaves finished runs alone. A run
that diverged, which experiments.run ends, counts as accuracy 0. Any other failure ends the
comparison.

    DIR/compare.html    curves with their spread, the table, the choice of learning rates
    DIR/compare.md      the table
    DIR/runs.jsonl      seconds and peak memory of every process
    DIR/compiled/       compiled programs, which all runs share

--draw_only draws what is finished, even while the comparison runs elsewhere; DIR may then be in a
bucket. grpo_jax/reports/comparison.py explains how arms are compared at equal numbers of sampled
tokens. jax is not imported here, since its memory would count as the runs'.
"""

import functools
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Collection

from absl import app, flags
from ml_collections import ConfigDict

from experiments import arguments, stages
from experiments.measure import jobs, processes
from experiments.progress import Progress
from grpo_jax.config import kinds, sections
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.reports import comparison, comparison_page, jsonl
from grpo_jax.run.reasons import reason

# part of the message of a run that a signal stopped (run/signals.py)
STOPPED = "to go on, run the same command again"
# part of the message with which a diverged run ends
DIVERGED = "updates in a row were not finite"


# Kinds of the settings of a comparison; runs check their own settings.
SETTINGS: dict[str, kinds.Kind] = {
  "base": kinds.PATH,
  "lrs": kinds.many(kinds.Number(0)),
  "tune_seeds": kinds.many(sections.KINDS["seed"]),
  "tune_split": kinds.PATH,
  "seeds": kinds.many(sections.KINDS["seed"]),
  "split": kinds.PATH,
  "steps": kinds.Whole(1),
  "prompts": kinds.Whole(1),
  "group": kinds.Whole(1),
  "eval_every": kinds.Whole(0),
}


def main(argv: list[str]) -> None:
  """Runs the rest of the comparison and draws it; with --draw_only it only draws."""
  del argv
  values = flags.FLAGS
  if not values.workdir:
    arguments.fail(
      "--workdir is missing: the folder of the comparison and of its runs, as in "
      "--workdir=runs/compare"
    )
  config = values.config
  with arguments.one_line_errors():
    if values.draw_only:
      storage.check("--workdir", values.workdir)
      storage.check_reached("--workdir", values.workdir)
    else:
      storage.check_disk(
        "--workdir",
        values.workdir,
        "a comparison runs on a disk; with --draw_only it may be in one",
      )
  workdir = storage.place(values.workdir)
  check(config)
  if values.draw_only:
    draw(config, workdir)
    return
  check_runs(config)
  with processes.locked(workdir) as lock, processes.stop_signals() as asked:
    finished = run_all(config, workdir, lock, asked)
  draw(config, workdir)
  if not finished:
    print("stopped; the same command goes on from here")


def check(config: ConfigDict) -> None:
  """Ends the program if the settings make no comparison."""
  if "arms" not in config or "lrs" not in config:
    arguments.fail(
      "--config: needs arms and a grid, as in --config=experiments/measure/comparisons.py; runs "
      "that are there already are compared by python -m experiments.report DIR DIR"
    )
  with arguments.one_line_errors():
    kinds.check(config, SETTINGS)
  for name in jobs.names(config):
    if not kinds.NAME.fits(name):  # it is the name of a folder
      arguments.fail(f"arms has the name {kinds.shown(name)}: use {kinds.NAME.expects}")
  if both := set(config.seeds) & set(config.tune_seeds):
    arguments.fail(
      f"seeds={config.seeds}: {min(both)} is among tune_seeds, too; an arm is shown on seeds of "
      "its own"
    )
  lists = {name: config[name] for name in ("lrs", "seeds", "tune_seeds")}
  for name, values in (lists | {"arms": jobs.names(config)}).items():
    if not values or len(set(values)) < len(values):
      arguments.fail(f"{name}={values}: at least one, and each once")


def check_runs(config: ConfigDict) -> None:
  """Ends the program if a run would refuse its settings.

  The configs of the runs import jax, and so a process of its own checks them.
  """
  child = multiprocessing.get_context("spawn").Process(target=check_arms, args=(config,))
  child.start()
  child.join()
  if child.exitcode:
    sys.exit(child.exitcode)


def check_arms(config: ConfigDict) -> None:
  """Ends this process if the settings of an arm are wrong, which its run would say hours later.

  So it does if a reward model is not there, unless a run before the run may make it.
  """
  from grpo_jax.loops import iterative  # imports jax
  from grpo_jax.reward_models import load
  from grpo_jax.setup import resolve

  arguments.define_config("of an arm")
  for arm in jobs.names(config):
    run = jobs.job(config, storage.place("."), arm, config.lrs[0], config.seeds[0])
    sys.argv = [f"arm {arm}", *run.flags]  # ml_collections reads overrides from there
    arguments.parse_flags(sys.argv)
    with arguments.one_line_errors():
      runs = stages.divide(flags.FLAGS.config, str(run.folder))
      for stage in runs:
        with stages.named(stage, runs):
          experiment = resolve.resolve(stage.config)
      if not experiment.eval.problems:  # of the last stage
        raise SettingError("eval.problems=0: accuracies are compared; use at least 1")
      if len(runs) == 1:
        load.shapes(experiment)
        if experiment.kind == "iterative":
          iterative.check(experiment)
    # each may be defined once
    for name in [name for name in flags.FLAGS if name.startswith("config.")]:
      delattr(flags.FLAGS, name)


def run_all(config: ConfigDict, workdir: storage.Path, lock: int, asked: list[int]) -> bool:
  """Does the runs that are left; returns False if it was stopped."""
  total, done = jobs.total_jobs(config), jobs.finished_jobs(config, workdir)
  with Progress(total * config.steps, done * config.steps) as progress:
    while run := jobs.next_job(config, workdir):
      label = f"run {done + 1}/{total}  {run.arm} lr {run.lr:g} seed {run.seed} on {run.split}"
      line = execute(
        run, lock, asked, functools.partial(show_steps, progress, done, config.steps, label)
      )
      with open(workdir / "runs.jsonl", "a") as f:
        f.write(json.dumps(line) + "\n")
      if comparison.state(run.folder) == "open" and not asked:
        settle(run, line["exit"])
      if asked or comparison.state(run.folder) == "open":  # open: somebody stopped only that run
        return jobs.next_job(config, workdir) is None
      done += 1
  return True


def show_steps(progress: Progress, runs: int, steps_of_run: int, label: str, step: int) -> None:
  """Shows the progress: `runs` finished runs, and `step` steps of the next."""
  progress.show(runs * steps_of_run + min(step, steps_of_run), label)


def command(run: jobs.Job) -> list[str]:
  """Returns the command line of a run."""
  # shared by the whole comparison
  compiled = run.folder.parents[2] / "compiled"
  own = [f"--workdir={run.folder}", f"--config.compilation_cache={compiled}"]
  return [sys.executable, "-m", "experiments.run", *run.flags, *own]


def execute(run: jobs.Job, lock: int, asked: list[int], show: Callable[[int], None]) -> dict:
  """Runs one process of a run to its end, and returns its line of runs.jsonl."""
  begun = (run.folder / "config.json").exists()
  run.folder.mkdir(parents=True, exist_ok=True)
  text = json.dumps(run.flags, indent=2) + "\n"
  storage.write(run.folder / "settings.json", text.encode())
  show(steps_done(run.folder))  # at once, since a short run may end before the next look
  ended = processes.run(
    command(run), run.folder / "log.txt", lock, asked, lambda: show(steps_done(run.folder))
  )
  return {
    "arm": run.arm,
    "lr": run.lr,
    "seed": run.seed,
    "split": run.split,
    "begun": begun,
    "seconds": ended.seconds,
    "peak_memory_mb": ended.peak_memory_mb,
    "exit": ended.code,
    "finished": comparison.state(run.folder) == "done",
    "machine": f"{os.cpu_count()} CPU cores ({platform.machine()}, {platform.system()})",
  }


def steps_done(folder: storage.Path) -> int:
  """Returns how many steps a run has done, by its metrics.jsonl."""
  lines = jsonl.metrics(folder / "metrics.jsonl")
  return int(lines[-1]["step"] or 0) if lines else 0


def settle(run: jobs.Job, code: int) -> None:
  """Marks a run as diverged, or ends the program if it failed for another reason.

  A run that somebody stopped by a signal is neither.
  """
  lines = (run.folder / "log.txt").read_bytes().decode(errors="replace").strip().splitlines()
  last = lines[-1] if lines else "?"
  if code == 0 and any(STOPPED in line for line in lines[-3:]):
    return
  if DIVERGED not in last:
    arguments.fail(
      f"{run.folder}/log.txt: experiments.run ended with {code} and no result: "
      f"{last.removeprefix('error: ')}"
    )
  (run.folder / "diverged.txt").write_text(last + "\n")


def draw(config: ConfigDict, workdir: storage.Path) -> None:
  """Writes compare.html and compare.md of what is finished."""
  if not workdir.is_dir():
    arguments.fail(f"--workdir={workdir}: no such folder; run without --draw_only first")
  grid = (tuple(config.lrs), tuple(config.tune_seeds))
  try:
    arms = comparison.finished_arms(workdir, jobs.names(config), *grid, tuple(config.seeds))
  except ValueError as error:
    arguments.fail(f"--workdir={workdir}: {error}")
  for run in jobs.all_jobs(config, workdir):
    jobs.claim(run)
  paragraphs = notes(config, workdir, arms)
  tuned = [["arm", *(f"{lr:g}" for lr in config.lrs)]]
  for arm in jobs.names(config) if len(config.lrs) > 1 else ():
    means = comparison.tuning(workdir, arm, *grid)
    tuned.append([arm, *("-" if mean is None else f"{100 * mean:.1f}%" for mean in means)])
  title = "Objectives at equal numbers of sampled tokens"
  text = comparison_page.page(title, arms, paragraphs, curves(config, arms), tuned)
  try:
    storage.write(workdir / "compare.html", text.encode())
    storage.write(workdir / "compare.md", comparison_page.markdown(arms, paragraphs).encode())
  except OSError as error:
    arguments.fail(f"--workdir={workdir}: cannot be written to ({reason(error)})")
  print(
    f"{workdir}/compare.html and compare.md: {jobs.finished_jobs(config, workdir)} of "
    f"{jobs.total_jobs(config)} runs"
  )


def notes(config: ConfigDict, workdir: storage.Path, arms: list[comparison.Arm]) -> list[str]:
  """Returns paragraphs on how the numbers were made, which a reader must know."""
  done, total = jobs.finished_jobs(config, workdir), jobs.total_jobs(config)
  starts = [100 * run.accuracy[0] for arm in arms for run in arm.runs]
  low, high = (f"{start:.1f}%" for start in (min(starts, default=0.0), max(starts, default=0.0)))
  before = f"The start solves {low}. " if low == high else f"The starts solve {low} to {high}. "
  lines = jsonl.read(workdir / "runs.jsonl")
  machines = sorted(
    {line["machine"] for line in lines if "machine" in line and line["arm"] in jobs.names(config)}
  )
  chosen = (
    f"The learning rate of each arm is the best of {', '.join(f'{lr:g}' for lr in config.lrs)} by "
    f"mean final accuracy on the {config.tune_split} split ({len(config.tune_seeds)} seeds); the "
    f"{len(config.seeds)} other seeds that are shown were evaluated on the {config.split} split."
    if len(config.lrs) > 1
    else f"Every arm has the learning rate {config.lrs[0]:g}; evaluated on the {config.split} "
    "split."
  )
  return [
    f"{before if starts else ''}Accuracy is read when each run had sampled "
    f"{comparison.budget(arms):,.0f} completion tokens, which all have, linearly between "
    "evaluations; offline arms count the samples that they have learned from. "
    f"{config.steps} steps of {config.prompts} prompts.",
    chosen,
    f"Runs one at a time{' on ' if machines else ''}{' and '.join(machines)}; seconds also measure "
    "what else the machine did.",
    *([f"Not finished: {done} of {total} runs are done."] if done < total else []),
    *unlike(config, workdir),
  ]


def unlike(config: ConfigDict, workdir: storage.Path) -> list[str]:
  """Returns a paragraph for each arm whose runs differ in more than seed, rate and split."""
  found = []
  for arm in jobs.names(config):
    folders = [run.folder for run in jobs.all_jobs(config, workdir) if run.arm == arm]
    if names := comparison.unlike([path for path in folders if comparison.state(path) == "done"]):
      found.append(f"The runs of {arm} are not alike: they differ in {', '.join(names)}.")
  return found


def curves(config: ConfigDict, arms: list[comparison.Arm]) -> str:
  """Returns the curves as SVG, or a line of text if there are none or matplotlib is missing."""
  runs = {arm.name: [(run.tokens, run.accuracy) for run in arm.runs] for arm in arms if arm.runs}
  if not runs:
    return "No run that is shown is finished."
  arguments.draw_to_files()
  try:
    from grpo_jax.reports import curves as drawing
  except ImportError:
    return "No curves: matplotlib is missing (pip install matplotlib)."
  labels = ("completion tokens sampled", f"accuracy on the {config.split} split")
  return drawing.svg(panels(config, runs), runs, comparison.budget(arms), labels)


def panels(config: ConfigDict, arms: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
  """Returns the title and the arms of each panel.

  There is one for each question that has two of `arms`, and one for the arms that are then left.
  """
  found = [
    (title, shown)
    for title, names in config.questions
    if len(shown := tuple(name for name in names if name in arms)) > 1
  ]
  asked = {name for _, names in found for name in names}
  others = tuple(name for name in arms if name not in asked)
  return [*found, *([("Others" if found else "Arms", others)] if others else [])]


if __name__ == "__main__":
  arguments.define_config(
    "What to compare: experiments/measure/comparisons.py[:quick,arms=a+b]", lock_config=True
  )
  flags.DEFINE_string(
    "workdir", None, "Folder of the comparison and of its runs. Made where it is missing."
  )
  flags.DEFINE_bool("draw_only", False, "Draw what is finished, run nothing.")
  app.run(main, flags_parser=arguments.parse_flags)
