"""Lists the runs of a comparison and finds the next one to do (compare.py)."""

import json
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.io import storage
from grpo_jax.reports import comparison


class Job(NamedTuple):
  """One run of a comparison."""

  arm: str
  lr: float
  seed: int
  split: str  # to evaluate on
  folder: storage.Path
  flags: list[str]  # those of experiments.run except --workdir


def job(config: ConfigDict, workdir: storage.Path, arm: str, lr: float, seed: int) -> Job:
  """Returns the run of one arm, learning rate and seed.

  A seed of `tune_seeds` is evaluated on `tune_split`.
  """
  split = config.tune_split if seed in config.tune_seeds else config.split
  objective, *changes = next(row for name, *row in config.arms if name == arm)
  settings = [
    f"steps={config.steps}",
    f"seed={seed}",
    f"data.test={split}",
    f"data.prompts={config.prompts}",
    f"sampler.group={config.group}",
    f"offline.prompts={config.steps * config.prompts}",
    f"eval.every={config.eval_every}",
    # no wider than rollouts, so that training sets the peak memory
    f"eval.batch={config.prompts * config.group}",
    *config.settings,
    *changes,
    f"learner.lr={lr!r}",
  ]
  base = config.base + ("," if ":" in config.base else ":")
  flags = [f"--config={base}objective={objective}"]
  flags += [f"--config.{setting}" for setting in settings]
  return Job(arm, lr, seed, split, comparison.folder(workdir, arm, lr, seed), flags)


def next_job(config: ConfigDict, workdir: storage.Path) -> Job | None:
  """Returns the next run to start or resume, tuning first; None if all are done."""
  for run in all_jobs(config, workdir):
    if comparison.state(claim(run).folder) == "open":
      return run
  return None


def all_jobs(config: ConfigDict, workdir: storage.Path) -> list[Job]:
  """Returns the runs in their order, of an arm those that are shown once its rate is chosen."""
  jobs = []
  for arm in names(config):
    seeds = config.tune_seeds if len(config.lrs) > 1 else ()
    best = comparison.best_lr(workdir, arm, config.lrs, config.tune_seeds)
    pairs = [(lr, seed) for lr in config.lrs for seed in seeds]
    pairs += [(best, seed) for seed in config.seeds if best is not None]
    jobs += [job(config, workdir, arm, lr, seed) for lr, seed in pairs]
  return jobs


def claim(run: Job) -> Job:
  """Returns the run, or ends the program if its folder holds a run with other settings."""
  path = run.folder / "settings.json"
  if not path.exists():
    return run
  try:
    old = json.loads(path.read_text())
  except ValueError:
    arguments.fail(f"--workdir: {path} is damaged; remove it if the run there has these settings")
  if old != run.flags:
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
  """Returns how many of `total_jobs` are finished or diverged."""
  return sum(comparison.state(run.folder) != "open" for run in all_jobs(config, workdir))
