"""Compares runs of several arms (settings that differ in one thing) at equal numbers of tokens.

The folder of a run is DIR/ARM/LR/SEED. An arm's learning rate is the one with the highest mean
final accuracy over the tuning seeds, where a diverged run counts 0; of two equal rates it is the
lower one. The page shows the arm's other seeds at that rate.

Runs are compared at the number of tokens that the shortest of them sampled in all. The accuracy of
each is read there, interpolated between two evaluations. An offline run counts a sample when it
first learns from it, since only those samples had to be drawn until then.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.config import sections
from grpo_jax.io import inputs_file, storage
from grpo_jax.reports import jsonl

CHANGED = "changed in the run"


class Run(NamedTuple):
  """A finished run with its N evaluations, from before the first step to after the last."""

  tokens: np.ndarray  # [N] completion tokens sampled until each evaluation
  accuracy: np.ndarray  # [N]
  seconds: float  # of the whole run
  memory_mb: float  # its peak; nan where it was not measured
  passes: float  # over a rollout, mean
  pass_at_1: float  # after the last step, mean of eval.samples samples; nan where there are none
  pass_at_k: float  # of all of them
  entropy: float  # of the policy, in nats, mean over the last quarter of the steps


class Arm(NamedTuple):
  """An arm: its finished runs at the chosen learning rate."""

  name: str
  lr: float
  at_edge: bool  # the rate is the grid's lowest or highest, so a better one may lie outside
  runs: list[Run]
  diverged: int  # the number of further seeds, which diverged and count as accuracy 0


def folder(workdir: storage.Path, arm: str, lr: float, seed: int) -> storage.Path:
  """Returns the folder of a run."""
  return workdir / arm / f"{lr:g}" / str(seed)


def state(path: storage.Path) -> str:
  """Returns "done", "diverged" or "open" (not begun, running or stopped)."""
  if (path / "result.json").exists():
    return "done"
  return "diverged" if (path / "diverged.txt").exists() else "open"


def read(path: storage.Path, memory_mb: float = float("nan")) -> Run:
  """Reads the folder of a finished run; see `sampled_tokens` for its ValueError."""
  config = json.loads((path / "config.json").read_text())
  lines = jsonl.metrics(path / "metrics.jsonl")
  steps, sampled = sampled_tokens(lines, config)
  evaluations = [line for line in lines if line.get("eval/accuracy") is not None]
  tokens = [sampled[steps <= line["step"]].sum() for line in evaluations]
  accuracy = [line["eval/accuracy"] for line in evaluations]
  passes = [line.get("inner/passes") or 1.0 for line in lines if "loss" in line]
  seconds = json.loads((path / "result.json").read_text())["wall_s"]
  entropies = [e for line in lines if (e := line.get("entropy")) is not None]
  last = entropies[-max(1, len(entropies) // 4) :]
  k = config.get("eval", {}).get("samples", 0)

  def solved(attempts: int) -> float:
    share = evaluations[-1].get(f"eval/pass@{attempts}") if evaluations and k else None
    return np.nan if share is None else share

  return Run(
    np.array(tokens, float),
    np.array(accuracy, float),
    seconds,
    memory_mb,
    float(np.mean(passes or [1.0])),
    solved(1),
    solved(k),
    float(np.mean(last)) if last else np.nan,
  )


def sampled_tokens(lines: Sequence[Json], config: Json) -> tuple[np.ndarray, np.ndarray]:
  """Returns the steps of a run and the completion tokens that were sampled for each, both [steps].

  Args:
    lines: of the run's metrics.jsonl.
    config: the run's config.json.

  Raises:
    ValueError: an offline run does not learn from all that it sampled, so the tokens are unknown.
  """
  if config["loop"] != "offline":
    pairs = [(line["step"], line["tokens"]) for line in lines if "tokens" in line]
  elif config["offline"]["data"] != "samples" or config["sampler"]["tries"] != 1:
    raise ValueError(
      f"offline.data={config['offline']['data']} with sampler.tries={config['sampler']['tries']}: "
      "the number of tokens that were sampled for it is not recorded"
    )
  else:
    batch = config["data"]["prompts"] * config["sampler"]["group"]
    first_epoch = config["offline"]["prompts"] // config["data"]["prompts"]
    lengths = [(line["step"], line["length/mean"]) for line in lines if "length/mean" in line]
    pairs = [(step, length * batch) for step, length in lengths if step <= first_epoch]
  steps, tokens = np.array(pairs, np.float64).reshape(-1, 2).T
  return steps, tokens


def final_accuracy(path: storage.Path) -> float | None:
  """Returns a run's accuracy after its last step; 0 if it diverged, None if it is not finished."""
  if (run_state := state(path)) != "done":
    return 0.0 if run_state == "diverged" else None
  return json.loads((path / "result.json").read_text())["accuracy_after"]


def unlike(folders: Sequence[storage.Path]) -> list[str]:
  """Returns the settings, versions and data in which runs of one arm differ.

  Their seed, learning rate, test data and the folder of compiled programs may, and what a run reads
  from a first run in its own folder.
  """
  own = ("seed", "learner.lr", "data.test", "test data", "compilation_cache")
  runs = [described(path) for path in folders]
  names = sorted(set().union(*runs)) if runs else []
  return [n for n in names if n not in own and any(run.get(n) != runs[0].get(n) for run in runs)]


def described(path: storage.Path) -> dict[str, str]:
  """Returns the settings and inputs of a run by their names, as JSON; its own folder is "".

  An input that has changed in the run is CHANGED; what is read from its own folder is left out.
  """
  folder = "/".join(path.parts[-3:])
  config = sections.flat(json.loads((path / "config.json").read_text()))
  settings = {name: json.dumps(value) for name, value in config.items()}
  from_there = [name for name, value in settings.items() if f"{folder}/" in value]
  for models in ("rewards.outcome_models", "rewards.process_models"):
    rows = config.get(models) or ()
    from_there += [f"rewards.{name}" for name, place, *_ in rows if f"{folder}/" in place]
  now = _inputs(path / inputs_file.NAME)
  changed: dict[str, str] = {}
  for file in path.glob(inputs_file.until("*")):
    changed |= dict.fromkeys(inputs_file.differences(_inputs(file), now), CHANGED)
  inputs = {
    name: value
    for name, value in (now | changed).items()
    if not any(name.startswith((f"{setting}/", f"{setting} ")) for setting in from_there)
  }
  return {name: value.replace(folder, "") for name, value in settings.items()} | inputs


def _inputs(file: storage.Path) -> dict[str, str]:
  """Returns what a run has noted of its inputs; {} without a file."""
  try:
    found = json.loads(file.read_text()) if file.exists() else {}
  except (ValueError, RecursionError):
    found = None
  return found if isinstance(found, dict) else {file.name: "damaged"}


def tuning(
  workdir: storage.Path, arm: str, lrs: Sequence[float], seeds: Sequence[int]
) -> list[float | None]:
  """Returns the mean final accuracy at each learning rate; None if a run is not finished."""
  means: list[float | None] = []
  for lr in lrs:
    finals = [final_accuracy(folder(workdir, arm, lr, seed)) for seed in seeds]
    finished = [accuracy for accuracy in finals if accuracy is not None]
    means.append(float(np.mean(finished)) if len(finished) == len(finals) else None)
  return means


def best_lr(
  workdir: storage.Path, arm: str, lrs: Sequence[float], seeds: Sequence[int]
) -> float | None:
  """Returns the chosen learning rate, or None until tuning is finished (for one rate, at once)."""
  if len(lrs) == 1:
    return lrs[0]
  means = [mean for mean in tuning(workdir, arm, lrs, seeds) if mean is not None]
  if len(means) < len(lrs):
    return None
  return min(zip(lrs, means), key=lambda pair: (-pair[1], pair[0]))[0]


def finished_arms(
  workdir: storage.Path,
  arms: Sequence[str],
  lrs: Sequence[float],
  tune_seeds: Sequence[int],
  seeds: Sequence[int],
) -> list[Arm]:
  """Returns every arm of which at least one of `seeds` is finished or diverged.

  Args:
    workdir: the folder of the comparison.
    arms: the names of the arms.
    lrs: the grid of learning rates.
    tune_seeds: the seeds that choose among them.
    seeds: the seeds to show.
  """
  peaks: dict[tuple[str, float, int], float] = {}
  for process in jsonl.read(workdir / "runs.jsonl"):
    key = (process["arm"], process["lr"], process["seed"])
    before = peaks.get(key, 0.0) if process.get("begun", True) else 0.0  # of a run since removed
    peaks[key] = max(before, process["peak_memory_mb"])
  finished = []
  for arm in arms:
    lr = best_lr(workdir, arm, lrs, tune_seeds)
    if lr is None:
      continue
    folders = {seed: folder(workdir, arm, lr, seed) for seed in seeds}
    states = {seed: state(path) for seed, path in folders.items()}
    done = [
      read(folders[s], peaks.get((arm, lr, s), float("nan"))) for s in seeds if states[s] == "done"
    ]
    diverged = list(states.values()).count("diverged")
    if done or diverged:
      finished.append(Arm(arm, lr, len(lrs) > 1 and lr in (min(lrs), max(lrs)), done, diverged))
  return finished


def budget(arms: Sequence[Arm]) -> float:
  """Returns the number of tokens that every run of these arms has sampled."""
  return min((float(run.tokens[-1]) for arm in arms for run in arm.runs), default=0.0)


def accuracies(arm: Arm, tokens: float) -> np.ndarray:
  """Returns the accuracy [seeds] of each seed at that number of tokens; 0 if it diverged."""
  return np.array(
    [np.interp(tokens, run.tokens, run.accuracy) for run in arm.runs] + [0.0] * arm.diverged
  )
