"""Runs several objectives at several learning rates and seeds, and compares them on one page.

    python -m experiments.measure.compare --workdir=DIR [--draw_only] \\
      --config=experiments/measure/comparisons.py[:quick]

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
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags
from ml_collections import ConfigDict

from experiments import arguments
from experiments.measure import processes
from experiments.progress import Progress
from grpo_jax.config import kinds, settings
from grpo_jax.io import storage
from grpo_jax.reports import comparison, jsonl

# stands in the message of one that a signal stopped (signals.py)
STOPPED = "to go on, run the same command again"
# stands in the message with which a run that diverged ends
DIVERGED = "updates in a row were not finite"


# What the settings of a comparison may be; the settings of its runs are checked by the runs.
SETTINGS = {
  "base": kinds.PATH,
  "lrs": kinds.many(kinds.Number(0)),
  "tune_seeds": kinds.many(settings.KINDS["seed"]),
  "tune_split": kinds.PATH,
  "seeds": kinds.many(settings.KINDS["seed"]),
  "split": kinds.PATH,
  "steps": kinds.Whole(1),
  "prompts": kinds.Whole(1),
  "group": kinds.Whole(1),
  "eval_every": kinds.Whole(0),
}


class Job(NamedTuple):
  """One run of the comparison."""

  arm: str
  lr: float
  seed: int
  split: str  # to evaluate on
  folder: storage.Path
  flags: list[str]  # those of experiments.run except --workdir


def main(argv: list[str]) -> None:
  """Runs what is left of the comparison and draws it, or (--draw_only) only draws it."""
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
  """Ends the program where the settings cannot be compared."""
  if "arms" not in config or "lrs" not in config:
    arguments.fail(
      "--config: needs arms and a grid, as in --config=experiments/measure/comparisons.py"
    )
  with arguments.one_line_errors():
    kinds.check(config, SETTINGS)
  for name in names(config):
    if not kinds.NAME.fits(name):  # it is the name of a folder
      arguments.fail(f"arms has the name {kinds.shown(name)}: use {kinds.NAME.expects}")
  if both := set(config.seeds) & set(config.tune_seeds):
    arguments.fail(
      f"seeds={config.seeds}: {min(both)} is among tune_seeds, too; an arm is shown on seeds of "
      "its own"
    )
  for name, given in (
    *((n, config[n]) for n in ("lrs", "seeds", "tune_seeds")),
    ("arms", names(config)),
  ):
    if not given or len(set(given)) < len(given):
      arguments.fail(f"{name}={given}: at least one, and each once")


def check_runs(config: ConfigDict) -> None:
  """Ends the program where a run would refuse its settings; their configs, which import jax, get
  their own process.
  """
  child = multiprocessing.get_context("spawn").Process(target=check_arms, args=(config,))
  child.start()
  child.join()
  if child.exitcode:
    sys.exit(child.exitcode)


def check_arms(config: ConfigDict) -> None:
  """Ends this process where an arm's settings are none, or out of range: else its run would say so,
  hours later.
  """
  arguments.define_config("of an arm")
  for arm in names(config):
    run = job(config, storage.place("."), arm, config.lrs[0], config.seeds[0])
    sys.argv = [f"arm {arm}", *run.flags]  # of which ml_collections reads the overrides
    arguments.parse_flags(sys.argv)
    with arguments.one_line_errors():
      settings.check(flags.FLAGS.config)
    # each may be defined once
    for name in [name for name in flags.FLAGS if name.startswith("config.")]:
      delattr(flags.FLAGS, name)


def job(config: ConfigDict, workdir: storage.Path, arm: str, lr: float, seed: int) -> Job:
  """Returns the run of one arm, learning rate and seed. A seed of `tune_seeds` is evaluated on
  `tune_split`.
  """
  split = config.tune_split if seed in config.tune_seeds else config.split
  objective, *own = next(own for name, *own in config.arms if name == arm)
  settings = [
    f"steps={config.steps}",
    f"seed={seed}",
    f"data.test={split}",
    f"data.prompts={config.prompts}",
    f"sampler.group={config.group}",
    f"offline.prompts={config.steps * config.prompts}",
    f"eval.every={config.eval_every}",
    # no wider than rollouts, so that the peak memory is training's
    f"eval.batch={config.prompts * config.group}",
    *config.settings,
    *own,
    f"learner.lr={lr!r}",
  ]
  base = config.base + ("," if ":" in config.base else ":")
  given = [
    f"--config={base}objective={objective}",
    *(f"--config.{setting}" for setting in settings),
  ]
  return Job(arm, lr, seed, split, comparison.folder(workdir, arm, lr, seed), given)


def next_job(config: ConfigDict, workdir: storage.Path) -> Job | None:
  """Returns the next run to do or to go on with: arm by arm, its tuning first; None when all are
  finished.
  """
  for arm in names(config):
    seeds, lrs = config.tune_seeds if len(config.lrs) > 1 else (), config.lrs
    best = comparison.best_lr(workdir, arm, config.lrs, config.tune_seeds)
    for lr, seed in [(lr, seed) for lr in lrs for seed in seeds] + [
      (best, seed) for seed in config.seeds
    ]:
      found = job(config, workdir, arm, lr, seed)
      if comparison.state(claim(found).folder) == "open":
        return found
  return None


def claim(run: Job) -> Job:
  """Returns the run; ends the program where its folder holds one with other settings, finished or
  not.
  """
  path = run.folder / "settings.json"
  if path.exists() and (old := json.loads(path.read_text())) != run.flags:
    other = [flag for flag in old if flag not in run.flags] or ["fewer settings"]
    arguments.fail(
      f"--workdir: {run.folder} holds a run with {' '.join(other)}; remove it or use another "
      "--workdir"
    )
  return run


def names(config: ConfigDict) -> tuple[str, ...]:
  """Returns the names of the arms."""
  return tuple(name for name, *_ in config.arms)


def total_jobs(config: ConfigDict) -> int:
  """Returns how many runs the comparison has."""
  tuning = len(config.lrs) * len(config.tune_seeds) if len(config.lrs) > 1 else 0
  return len(config.arms) * (tuning + len(config.seeds))


def finished_jobs(config: ConfigDict, workdir: storage.Path) -> int:
  """Returns how many of `total_jobs` are done or diverged."""
  places = []
  for arm in names(config):
    if len(config.lrs) > 1:
      places += [
        comparison.folder(workdir, arm, lr, seed) for lr in config.lrs for seed in config.tune_seeds
      ]
    best = comparison.best_lr(workdir, arm, config.lrs, config.tune_seeds)
    if best is not None:
      places += [comparison.folder(workdir, arm, best, seed) for seed in config.seeds]
  return sum(comparison.state(place) != "open" for place in places)


def run_all(config: ConfigDict, workdir: storage.Path, lock: int, asked: list[int]) -> bool:
  """Does the runs that are left; returns False where it was stopped."""
  total, done = total_jobs(config), finished_jobs(config, workdir)
  with Progress(total * config.steps, done * config.steps) as progress:
    while run := next_job(config, workdir):
      label = f"run {done + 1}/{total}  {run.arm} lr {run.lr:g} seed {run.seed} on {run.split}"
      line = execute(
        run, lock, asked, functools.partial(show_steps, progress, done, config.steps, label)
      )
      with open(workdir / "runs.jsonl", "a") as f:
        f.write(json.dumps(line) + "\n")
      if comparison.state(run.folder) == "open" and not asked:
        settle(run, line["exit"])
      if asked or comparison.state(run.folder) == "open":  # open: somebody stopped that run alone
        return next_job(config, workdir) is None
      done += 1
  return True


def show_steps(progress: Progress, runs: int, steps_of_run: int, label: str, step: int) -> None:
  """Shows that so many runs are done, each of so many steps, and `step` steps of the next."""
  progress.show(runs * steps_of_run + min(step, steps_of_run), label)


def command(run: Job) -> list[str]:
  """Returns the command line of a run."""
  # of the whole comparison: seeds share their programs
  compiled = run.folder.parents[2] / "compiled"
  own = [f"--workdir={run.folder}", f"--config.compilation_cache={compiled}"]
  return [sys.executable, "-m", "experiments.run", *run.flags, *own]


def execute(run: Job, lock: int, asked: list[int], show: Callable[[int], None]) -> dict:
  """Runs one process of a run to its end, and returns its line of runs.jsonl; `show` is told the
  steps done.
  """
  run.folder.mkdir(parents=True, exist_ok=True)
  (run.folder / "settings.json").write_text(json.dumps(run.flags, indent=2) + "\n")
  show(steps_done(run.folder))  # before it starts: it may be over by the first look
  ended = processes.run(
    command(run), run.folder / "log.txt", lock, asked, lambda: show(steps_done(run.folder))
  )
  return {
    "arm": run.arm,
    "lr": run.lr,
    "seed": run.seed,
    "split": run.split,
    "seconds": ended.seconds,
    "peak_memory_mb": ended.peak_memory_mb,
    "exit": ended.code,
    "finished": comparison.state(run.folder) == "done",
  }


def steps_done(folder: storage.Path) -> int:
  """Returns how many steps a run has done, by its metrics.jsonl."""
  lines = jsonl.metrics(folder / "metrics.jsonl")
  return lines[-1]["step"] if lines else 0


def settle(run: Job, code: int) -> None:
  """Marks a run that diverged as such; ends the program where it failed for another reason, or
  ended without a result.

  One that somebody stopped by a signal is neither.
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
    arms = comparison.finished_arms(workdir, names(config), *grid, tuple(config.seeds))
  except ValueError as error:
    arguments.fail(f"--workdir={workdir}: {error}")
  said = notes(config, workdir, arms)
  tuned = [["arm", *(f"{lr:g}" for lr in config.lrs)]]
  for arm in names(config) if len(config.lrs) > 1 else ():
    means = comparison.tuning(workdir, arm, *grid)
    tuned.append([arm, *("-" if mean is None else f"{100 * mean:.1f}%" for mean in means)])
  title = "Objectives at equal numbers of sampled tokens"
  text = comparison.page(title, arms, said, curves(config, arms), tuned)
  for name, content in (("compare.html", text), ("compare.md", comparison.markdown(arms, said))):
    storage.write(workdir / name, content.encode())
  print(
    f"{workdir}/compare.html and compare.md: {finished_jobs(config, workdir)} of "
    f"{total_jobs(config)} runs"
  )


def notes(config: ConfigDict, workdir: storage.Path, arms: list[comparison.Arm]) -> list[str]:
  """Returns what a reader must know of how the numbers were made, a paragraph each."""
  done, total = finished_jobs(config, workdir), total_jobs(config)
  starts = [run.accuracy[0] for arm in arms for run in arm.runs]
  before = f"The warm start solves {100 * sum(starts) / len(starts):.1f}%. " if starts else ""
  chosen = (
    f"The learning rate of each arm is the best of {', '.join(f'{lr:g}' for lr in config.lrs)} by "
    f"mean final accuracy on the {config.tune_split} split ({len(config.tune_seeds)} seeds); the "
    f"{len(config.seeds)} other seeds that are shown were evaluated on the {config.split} split."
    if len(config.lrs) > 1
    else f"Every arm has the learning rate {config.lrs[0]:g}; evaluated on the {config.split} split."
  )
  return [
    f"{before}Accuracy is read when each run had sampled {comparison.budget(arms):,.0f} completion "
    "tokens, which all have, linearly between evaluations; offline arms count the samples that "
    f"they have learned from. {config.steps} steps of {config.prompts} prompts.",
    chosen,
    f"Runs one at a time on {os.cpu_count()} CPU cores ({platform.machine()}, "
    f"{platform.system()}); seconds also measure what else that machine did.",
    *([f"Not finished: {done} of {total} runs are done."] if done < total else []),
  ]


def curves(config: ConfigDict, arms: list[comparison.Arm]) -> str:
  """Returns the curves as SVG; a line of text where no run is finished or matplotlib is missing."""
  runs = {arm.name: [(run.tokens, run.accuracy) for run in arm.runs] for arm in arms if arm.runs}
  if not runs:
    return "No run that is shown is finished."
  try:
    from grpo_jax.reports import curves as drawing
  except ImportError:
    return "No curves: matplotlib is missing (pip install matplotlib)."
  asked = {name for _, of_panel in config.questions for name in of_panel}
  others = tuple(name for name in runs if name not in asked)
  panels = [*config.questions, *([("Others", others)] if others else [])]
  labels = ("completion tokens sampled", f"accuracy on the {config.split} split")
  return drawing.svg(panels, runs, comparison.budget(arms), labels)


if __name__ == "__main__":
  arguments.define_config(
    "What to compare: experiments/measure/comparisons.py[:quick,arms=a+b]", lock_config=True
  )
  flags.DEFINE_string(
    "workdir", None, "Folder of the comparison and of its runs. Made where it is missing."
  )
  flags.DEFINE_bool("draw_only", False, "Draw what is finished, run nothing.")
  app.run(main, flags_parser=arguments.parse_flags)
