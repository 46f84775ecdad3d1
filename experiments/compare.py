"""Runs several objectives at several learning rates and seeds, one run at a time, and compares them on one page.

    python -m experiments.compare --config=experiments/comparisons.py[:quick] --workdir=DIR [--draw_only]

Every run is `python -m experiments.run` in DIR/ARM/LR/SEED, with its output in log.txt there. Stop it at any time: the
same command goes on, with what is finished left alone. A run that diverged (experiments.run ends it) counts as
accuracy 0; any other failure ends the comparison.

    DIR/compare.html    curves with their spread, the table, the choice of learning rates
    DIR/compare.md      the table
    DIR/runs.jsonl      seconds and peak memory of every process, as it ended
    DIR/compiled/       programs, each compiled once

--draw_only draws what is finished, also while the comparison runs elsewhere. grpo_jax/reports/comparison.py says how
arms are compared at equal numbers of sampled tokens.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import rich.console
import rich.progress
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from experiments import arguments
from grpo_jax.reports import comparison, jsonl

PLAIN_SECONDS = 60.0  # between lines where the console is no terminal
POLL_SECONDS = 0.5
DIVERGED = "updates in a row were not finite"  # so Session.log ends a run


class Job(NamedTuple):
  """One run."""

  arm: str
  lr: float
  seed: int
  split: str  # to evaluate on
  folder: pathlib.Path
  flags: list[str]  # of experiments.run, but for --workdir


def main(argv: list[str]) -> None:
  del argv
  values = flags.FLAGS
  if not values.workdir:
    arguments.fail("--workdir is missing: the folder of the comparison and of its runs, as in --workdir=runs/compare")
  config, workdir = values.config, pathlib.Path(values.workdir)
  check(config)
  if values.draw_only:
    draw(config, workdir)
    return
  with locked(workdir) as lock, stop_signals() as asked:
    finished = run_all(config, workdir, lock, asked)
  draw(config, workdir)
  if not finished:
    print("stopped; the same command goes on from here")


def check(config: ConfigDict) -> None:
  """Ends the program where the settings cannot be compared."""
  if "arms" not in config or "lrs" not in config:
    arguments.fail("--config: needs arms and a grid, as in --config=experiments/comparisons.py")
  if both := set(config.seeds) & set(config.tune_seeds):
    arguments.fail(f"seeds={config.seeds}: {min(both)} is among tune_seeds, too; an arm is shown on seeds of its own")
  for name, given in (*((n, config[n]) for n in ("lrs", "seeds", "tune_seeds")), ("arms", names(config))):
    if not given or len(set(given)) < len(given):
      arguments.fail(f"{name}={given}: at least one, and each once")


def job(config: ConfigDict, workdir: pathlib.Path, arm: str, lr: float, seed: int) -> Job:
  """The run of one arm, learning rate and seed. A seed of `tune_seeds` is evaluated on `tune_split`."""
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
    f"eval.batch={config.prompts * config.group}",  # no wider than rollouts, so that the peak memory is training's
    *config.settings,
    *own,
    f"learner.lr={lr!r}",
  ]
  given = [f"--config={config.base}:objective={objective}", *(f"--config.{setting}" for setting in settings)]
  return Job(arm, lr, seed, split, comparison.folder(workdir, arm, lr, seed), given)


def next_job(config: ConfigDict, workdir: pathlib.Path) -> Job | None:
  """The next run to do, or to go on with: arm by arm, its tuning first; None when all are finished."""
  for arm in names(config):
    seeds, lrs = config.tune_seeds if len(config.lrs) > 1 else (), config.lrs
    best = comparison.best_lr(workdir, arm, config.lrs, config.tune_seeds)
    for lr, seed in [(lr, seed) for lr in lrs for seed in seeds] + [(best, seed) for seed in config.seeds]:
      found = job(config, workdir, arm, lr, seed)
      if comparison.state(claim(found).folder) == "open":
        return found
  return None


def claim(run: Job) -> Job:
  """Refuses a folder whose run, finished or not, had other settings."""
  path = run.folder / "settings.json"
  if path.exists() and (old := json.loads(path.read_text())) != run.flags:
    other = [flag for flag in old if flag not in run.flags] or ["fewer settings"]
    arguments.fail(f"--workdir: {run.folder} holds a run with {' '.join(other)}; remove it or use another --workdir")
  return run


def names(config: ConfigDict) -> tuple[str, ...]:
  return tuple(name for name, *_ in config.arms)


def total_jobs(config: ConfigDict) -> int:
  tuning = len(config.lrs) * len(config.tune_seeds) if len(config.lrs) > 1 else 0
  return len(config.arms) * (tuning + len(config.seeds))


def finished_jobs(config: ConfigDict, workdir: pathlib.Path) -> int:
  """How many of `total_jobs` are done or diverged."""
  places = []
  for arm in names(config):
    if len(config.lrs) > 1:
      places += [comparison.folder(workdir, arm, lr, seed) for lr in config.lrs for seed in config.tune_seeds]
    best = comparison.best_lr(workdir, arm, config.lrs, config.tune_seeds)
    if best is not None:
      places += [comparison.folder(workdir, arm, best, seed) for seed in config.seeds]
  return sum(comparison.state(place) != "open" for place in places)


def run_all(config: ConfigDict, workdir: pathlib.Path, lock: int, asked: list[int]) -> bool:
  """Does what is left; False where it was stopped."""
  total, done = total_jobs(config), finished_jobs(config, workdir)
  with progress(total * config.steps, done * config.steps) as show:
    while run := next_job(config, workdir):
      label = f"run {done + 1}/{total}  {run.arm} lr {run.lr:g} seed {run.seed} on {run.split}"
      row = execute(run, lock, asked, lambda step: show(done * config.steps + min(step, config.steps), label))
      with open(workdir / "runs.jsonl", "a") as f:
        f.write(json.dumps(row) + "\n")
      if comparison.state(run.folder) == "open" and row["exit"] and not asked:
        settle(run, row["exit"])
      if asked or comparison.state(run.folder) == "open":  # open: somebody stopped that run alone
        return next_job(config, workdir) is None
      done += 1
  return True


def command(run: Job) -> list[str]:
  compiled = run.folder.parents[2] / "compiled"  # of the whole comparison: seeds share their programs
  own = [f"--workdir={run.folder}", f"--config.compilation_cache={compiled}"]
  return [sys.executable, "-m", "experiments.run", *run.flags, *own]


def execute(run: Job, lock: int, asked: list[int], step: Callable[[int], None]) -> dict:
  """Runs one process to its end, and says what it took.

  Peak memory is the kernel's, of that process alone. It is never less than this program's own, which Linux hands on
  when a process starts: so nothing here imports jax.
  """
  run.folder.mkdir(parents=True, exist_ok=True)
  (run.folder / "settings.json").write_text(json.dumps(run.flags, indent=2) + "\n")
  step(steps_done(run.folder))  # before it starts: it may be over by the first look
  started, told = time.monotonic(), 0
  with open(run.folder / "log.txt", "a") as log:
    child = subprocess.Popen(
      command(run),
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,  # Ctrl-C comes here alone, and is handed on
      pass_fds=(lock,),  # the folder is in use until the run has ended, too
    )
    while True:
      pid, status, usage = os.wait4(child.pid, os.WNOHANG)
      if pid:
        break
      for _ in asked[told:]:
        os.kill(child.pid, signal.SIGTERM if not told else signal.SIGINT)
        told += 1
      step(steps_done(run.folder))
      time.sleep(POLL_SECONDS)
  child.returncode = os.waitstatus_to_exitcode(status)
  peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
  return {
    "arm": run.arm,
    "lr": run.lr,
    "seed": run.seed,
    "split": run.split,
    "seconds": round(time.monotonic() - started, 3),
    "peak_memory_mb": round(peak, 1),
    "exit": child.returncode,
    "finished": comparison.state(run.folder) == "done",
  }


def steps_done(folder: pathlib.Path) -> int:
  rows = jsonl.read(folder / "metrics.jsonl")
  return rows[-1]["step"] if rows else 0


def settle(run: Job, code: int) -> None:
  """Marks a run that diverged as such; ends the program where it failed for another reason."""
  lines = (run.folder / "log.txt").read_text(errors="replace").strip().splitlines()
  last = lines[-1] if lines else "?"
  if DIVERGED not in last:
    arguments.fail(f"{run.folder}/log.txt: experiments.run ended with {code}: {last.removeprefix('error: ')}")
  (run.folder / "diverged.txt").write_text(last + "\n")


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[int]:
  """Holds DIR as long as this program, or a run that outlives it, is alive; gives the file descriptor."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    file = open(workdir / "lock", "w")
  except OSError as error:
    arguments.fail(f"--workdir={workdir}: cannot write there: {error.strerror}")
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      arguments.fail(f"--workdir={workdir}: another comparison, or a run that it left, is at work there; wait for it")
    yield file.fileno()


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
  """The SIGINT and SIGTERM that came, as a list that grows."""
  asked: list[int] = []

  def handler(number: int, _) -> None:
    os.write(2, b"\nthe run saves and ends; Ctrl-C again ends it at once\n" if not asked else b"\n")
    asked.append(number)

  before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield asked
  finally:
    for number, old in before.items():
      signal.signal(number, old)


@contextlib.contextmanager
def progress(total: int, done: int) -> Iterator[Callable[[int, str], None]]:
  """`show(done, text)` of `total` steps: a bar with the time left, or a plain line now and then without a terminal."""
  console = rich.console.Console()
  starts: dict[str, tuple[float, int]] = {}

  def left(now: int) -> str:
    at, first = starts.setdefault("first", (time.monotonic(), now))  # what was there before took no time here
    return time_left(time.monotonic() - at, now - first, total - now)

  if console.is_terminal:
    columns = (
      rich.progress.BarColumn(bar_width=24),
      rich.progress.TextColumn("{task.percentage:.0f}%  {task.fields[left]} left  {task.fields[text]}", markup=False),
    )
    with rich.progress.Progress(*columns, console=console, refresh_per_second=2) as bar:
      task = bar.add_task("", total=total, completed=done, left="-:--:--", text="")
      yield lambda now, text: bar.update(task, completed=now, text=text, left=left(now))
    return
  said = {"at": -PLAIN_SECONDS, "text": ""}

  def show(now: int, text: str) -> None:
    at, rest = time.monotonic(), left(now)
    if text != said["text"] or at - said["at"] >= PLAIN_SECONDS:
      print(f"{text}  {now / total:.0%}  {rest} left", flush=True)
      said.update(at=at, text=text)

  yield show


def time_left(seconds: float, done: int, left: int) -> str:
  """H:MM:SS for `left` more steps, where `done` took so many seconds."""
  if done <= 0:
    return "-:--:--"
  s = round(seconds / done * left)
  return f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"


def draw(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Writes compare.html and compare.md of what is finished."""
  if not workdir.is_dir():
    arguments.fail(f"--workdir={workdir}: no such folder; run without --draw_only first")
  grid = (tuple(config.lrs), tuple(config.tune_seeds))
  try:
    rows = comparison.rows_of(workdir, names(config), *grid, tuple(config.seeds))
  except ValueError as error:
    arguments.fail(f"--workdir={workdir}: {error}")
  said = notes(config, workdir, rows)
  tuned = [["arm", *(f"{lr:g}" for lr in config.lrs)]]
  for arm in names(config) if len(config.lrs) > 1 else ():
    means = comparison.tuning(workdir, arm, *grid)
    tuned.append([arm, *("-" if mean is None else f"{100 * mean:.1f}%" for mean in means)])
  title = "Objectives at equal numbers of sampled tokens"
  text = comparison.page(title, rows, said, curves(config, rows), tuned)
  for name, content in (("compare.html", text), ("compare.md", comparison.markdown(rows, said))):
    temporary = workdir / f"{name}.tmp"
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(workdir / name)
  print(f"{workdir}/compare.html and compare.md: {finished_jobs(config, workdir)} of {total_jobs(config)} runs")


def notes(config: ConfigDict, workdir: pathlib.Path, rows: list[comparison.Row]) -> list[str]:
  """What a reader must know of how the numbers came about."""
  done, total = finished_jobs(config, workdir), total_jobs(config)
  starts = [run.accuracy[0] for row in rows for run in row.runs]
  before = f"The warm start solves {100 * sum(starts) / len(starts):.1f}%. " if starts else ""
  chosen = (
    f"The learning rate of each arm is the best of {', '.join(f'{lr:g}' for lr in config.lrs)} by mean final accuracy "
    f"on the {config.tune_split} split ({len(config.tune_seeds)} seeds); the {len(config.seeds)} other seeds that are "
    f"shown were evaluated on the {config.split} split."
    if len(config.lrs) > 1
    else f"Every arm has the learning rate {config.lrs[0]:g}; evaluated on the {config.split} split."
  )
  return [
    f"{before}Accuracy is read when each run had sampled {comparison.budget(rows):,.0f} completion tokens, which all "
    f"have, linearly between evaluations; offline arms count the samples that they have learned from. "
    f"{config.steps} steps of {config.prompts} prompts.",
    chosen,
    f"Runs one at a time on {os.cpu_count()} CPU cores ({platform.machine()}, {platform.system()}); seconds also "
    f"measure what else that machine did.",
    *([f"Not finished: {done} of {total} runs are done."] if done < total else []),
  ]


def curves(config: ConfigDict, rows: list[comparison.Row]) -> str:
  """SVG; a line of text where there is nothing to draw, or nothing to draw it with."""
  arms = {row.arm: [(run.tokens, run.accuracy) for run in row.runs] for row in rows if row.runs}
  if not arms:
    return "No run that is shown is finished."
  try:
    from grpo_jax.reports import curves as drawing
  except ImportError:
    return "No curves: matplotlib is missing (pip install matplotlib)."
  asked = {arm for _, of_panel in config.questions for arm in of_panel}
  others = tuple(arm for arm in arms if arm not in asked)
  panels = [*config.questions, *([("Others", others)] if others else [])]
  labels = ("completion tokens sampled", f"accuracy on the {config.split} split")
  return drawing.svg(panels, arms, comparison.budget(rows), labels)


if __name__ == "__main__":
  config_flags.DEFINE_config_file(
    "config", None, "What to compare: experiments/comparisons.py[:quick,arms=a+b]", lock_config=True
  )
  flags.DEFINE_string("workdir", None, "Folder of the comparison and of its runs. Made where it is missing.")
  flags.DEFINE_bool("draw_only", False, "Draw what is finished, run nothing.")
  app.run(main, flags_parser=arguments.parse_flags)
