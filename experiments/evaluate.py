"""Evaluates weights on the test split of an experiment, by pass@1, pass@k and maj@k.

    python -m experiments.evaluate --config=FILE[:arg=value,...] --path=FOLDER_OR_WORKDIR
        [--path=ANOTHER] [--step=N] [--out=DIR] [--config.section.name=value ...]

Prompts, reward, sampler and everything else are the experiment's, as before its first step and
after its last; the noise is that of its first evaluation. Standard output gets one line of JSON for
each --path, stderr everything else. Several paths (--path=A --path=B, or --path=A,B) answer the
same problems. Each line from the second on has the differences to the first with their standard
errors, which are also shown as a table. --step is for the paths that are runs: one for all, or one
for each in turn. --out gets samples.html and samples.jsonl with everything that was sampled.
"""

import collections
import dataclasses
import functools
import json
import math
import operator
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich.console
import rich.table
import rich.text
from absl import app, flags, logging
from ml_collections import ConfigDict

from experiments import arguments, sources
from experiments.progress import Progress
from grpo_jax.errors import SettingError, said_of
from grpo_jax.io import storage
from grpo_jax.run import provenance

if TYPE_CHECKING:
  import numpy as np

  from grpo_jax.evaluation import policy
  from grpo_jax.setup import build
  from grpo_jax.setup.experiment import Experiment
  from grpo_jax.types import Completion, Example


@dataclasses.dataclass
class Evaluated:
  """Holds the results of one path."""

  line: dict[str, Any]  # as it is printed
  problems: "dict[str, np.ndarray]"  # metric -> its value on each problem, [N]
  samples: list[dict[str, Any]]  # as samples.jsonl has them


def main(argv: list[str]) -> None:
  """Evaluates the paths that the flags name."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax logs every step it takes
  values = flags.FLAGS
  with arguments.one_line_errors(), said_of("--path"), sources.output() as out:
    given = [path for value in values.path or () for path in value.split(",") if path]
    paths = [storage.expanded("--path", path) for path in given]
    print("starting: importing jax, loading weights and data", flush=True)
    experiment, steps = check(values.config, paths, values.step or [], values.out)
    # all of them before the first is evaluated
    models = [sources.model(experiment, path, step) for path, step in zip(paths, steps)]
    results: list[Evaluated] = []
    try:
      for path, step, model in zip(paths, steps, models):
        result = evaluate_model(experiment, path, step, model)
        if results:
          result.line["difference"] = differences(results[0].problems, result.problems)
        print(json.dumps(result.line), file=out, flush=True)
        results.append(result)
    finally:
      if values.out and results:
        write_samples(values.out, of_all_paths([result.samples for result in results]))
    if len(results) > 1:
      rich.console.Console(width=120).print(table(results))


def check(
  config: ConfigDict, paths: Sequence[str], steps: Sequence[int], out: str | None
) -> "tuple[Experiment, list[int | None]]":
  """Returns the experiment and the step of each path, after all checks that need no weights."""
  from grpo_jax.setup import resolve

  if not paths:
    raise SettingError(f"--path is missing: {sources.WEIGHTS}, as in --path=runs/1")
  experiment = resolve.resolve(config)
  if not experiment.eval.problems:
    raise SettingError(
      "eval.problems=0: there is nothing to evaluate; use a whole number of at least 1"
    )
  for path in paths:
    sources.check_place("--path", path)
  step_of_path = steps_of([provenance.is_run(path) for path in paths], steps)
  for path, step in zip(paths, step_of_path):
    sources.check("--path", path, step)
    warn_of_prompts(experiment, path)
  if out:
    sources.check_out(out, paths)
    make_folder(out)
  return experiment, step_of_path


def warn_of_prompts(experiment: "Experiment", path: str) -> None:
  """Warns if a run was trained with other prompts, stop tokens or environment."""
  run, played = provenance.run_of(path), "environment.name"
  # without an environment in both, or with different ones, its other settings say nothing
  own = experiment.environment.name
  same = own and sources.trained_with(run, [played]).get(played) == own
  names = (*sources.PROMPT, *(sources.PLAYED if same else [played]))
  for name, trained in sources.trained_with(run, names).items():
    if trained != (now := operator.attrgetter(name)(experiment)):
      print(
        f"warning: {path} was trained with {name}={trained!r}, and is evaluated with {now!r}",
        flush=True,
      )


def steps_of(runs: Sequence[bool], steps: Sequence[int]) -> list[int | None]:
  """Returns the step of each path, None for folders; one step is for all runs.

  Args:
    runs: whether each path is a run.
    steps: as --step gives them.
  """
  many = sum(runs)
  if len(steps) not in (0, 1, many) or (steps and not many):
    flags_given = " ".join(f"--step={step}" for step in steps)
    raise SettingError(
      f"{flags_given}: there are {many} runs among the {len(runs)} of --path; give a step for "
      "each of them, or one for all"
    )
  left = iter([*steps] * (many if len(steps) == 1 else 1))
  return [next(left, None) if is_run else None for is_run in runs]


def evaluate_model(
  experiment: "Experiment", path: str, step: int | None, model: "build.Model"
) -> Evaluated:
  """Evaluates the weights of one folder or run, which `model` loads."""
  from grpo_jax.evaluation import policy
  from grpo_jax.evaluation.evaluator import Evaluator
  from grpo_jax.run import writer
  from grpo_jax.setup import build

  start, step = time.monotonic(), sources.step_of(path, step)
  evaluator = Evaluator(experiment, model)
  generators = {"greedy": evaluator.greedy}
  if experiment.eval.samples:
    generators["sampled"] = evaluator.sampled
  n, samples = len(evaluator.problems), []
  outcomes: list[policy.Outcomes] = []
  print(f"{path}: loading weights, compiling", flush=True)
  params, key = model.load(), build.key(experiment.seed, build.EVALUATE, 0)
  with Progress(n * len(generators), 0) as bar:
    for kind, generator in generators.items():
      text, before = f"{path}: {kind}", n * len(outcomes)
      progress = functools.partial(_show, bar, before, text)
      rows: list[dict[str, Any]] = []
      seen = functools.partial(_keep, rows, {"step": step or 0, "path": path, "kind": kind})
      outcomes.append(evaluator.solve(generator, params, key, progress, seen))
      # a problem's greedy samples are all equal: one is kept
      samples += rows[:: generator.sample.setup.group] if kind == "greedy" else rows
  numbers = policy.metrics_of(*outcomes)
  for _, warning in evaluator.warnings(numbers):
    print(f"warning: {warning}", flush=True)
  line = {"path": path} | ({} if step is None else {"step": step})
  line |= {"problems": n, "samples": experiment.eval.samples}
  line |= writer.clean(numbers) | {"wall_s": round(time.monotonic() - start, 1)}
  return Evaluated(line, policy.by_problem(*outcomes), samples)


def _show(bar: Progress, before: int, text: str, done: int, total: int) -> None:
  """Shows how many problems are done, after `before` of another kind of decoding."""
  del total
  bar.show(before + done, text)


def _keep(
  samples: list[dict[str, Any]],
  about: dict[str, Any],
  example: "Example",
  completion: "Completion",
  judged: "policy.Judged",
) -> None:
  """Adds a completion to the rows of samples.jsonl."""
  from grpo_jax.types import STOPPED

  ended = "stopped" if completion.ended == STOPPED else "truncated"
  row = {"question": example.question, "completion": completion.text, "answer": example.answer}
  row = about | row | {"reward": float(judged.right), "ended": ended}
  samples.append(row | ({"faults": judged.fault} if judged.fault else {}))


def of_all_paths(paths: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
  """Returns the rows of samples.jsonl of all paths.

  Those of several paths are groups: each has what all paths wrote to one problem. Problems whose
  mean reward differs most from that of the first path come first, those that it was not asked last.
  The rows of one group have one step, so that the step of a path's checkpoint is their field
  "checkpoint".

  Args:
    paths: for each path its rows, of each kind in the order of the problems.
  """
  if len(paths) == 1:
    return paths[0]
  # by the problem's group, which its question tells: a prompt may be too long for one path alone
  groups: dict[tuple[str, int], int] = {}
  found: dict[int, list[dict[str, Any]]] = {}
  means: dict[int, dict[str, dict[int, float]]] = {}  # by group, kind and path
  for path, rows in enumerate(paths):
    kinds = {row["kind"]: [r for r in rows if r["kind"] == row["kind"]] for row in rows}
    problems = len(kinds["greedy"])  # has one for each
    for kind, some in kinds.items():
      per, asked = len(some) // problems, collections.Counter[str]()
      for n in range(problems):
        own = some[n * per : (n + 1) * per]
        question = own[0]["question"]
        group = groups.setdefault((question, asked[question]), len(groups))
        asked[question] += 1  # a question may come twice
        about = {"step": 0, "group": group}
        about |= {"checkpoint": own[0]["step"]} if own[0]["step"] else {}
        found.setdefault(group, []).extend(row | about for row in own)
        mean = sum(row["reward"] for row in own) / per
        means.setdefault(group, {}).setdefault(kind, {})[path] = mean

  def apart(problem: int) -> float:
    return max(
      abs(x - of[0]) if 0 in of else -1.0 for of in means[problem].values() for x in of.values()
    )

  order = sorted(found, key=apart, reverse=True)
  return [row for problem in order for row in found[problem]]


def differences(
  before: "dict[str, np.ndarray]", after: "dict[str, np.ndarray]"
) -> dict[str, dict[str, float | None]]:
  """Returns by how much `after` is better in each metric, with the standard error of the mean."""
  from grpo_jax.evaluation import policy

  paired = {name: policy.paired(before[name], after[name]) for name in before if name in after}
  return {
    name: {"mean": mean, "error": None if math.isnan(error) else error}
    for name, (mean, error) in paired.items()
  }


def table(results: Sequence[Evaluated]) -> rich.table.Table:
  """Returns a table of the metrics, a row each, with the differences to the first path."""
  shown = rich.table.Table(box=None)
  shown.add_column("")
  for result in results:
    step = f" {result.line['step']}" if "step" in result.line else ""
    shown.add_column(rich.text.Text(result.line["path"] + step), justify="right")
    if "difference" in result.line:
      shown.add_column("difference", justify="right")
  for name in results[0].problems:
    cells = []
    for result in results:
      cells.append(f"{result.line[name]:.1%}" if name in result.line else "")
      if "difference" in result.line:
        cells.append(_signed(result.line["difference"].get(name)))
    shown.add_row(name, *cells)
  return shown


def _signed(difference: dict[str, Any] | None) -> str:
  """Returns a difference with its standard error, in points of a hundred; "" if there is none."""
  if difference is None:
    return ""
  error = "" if difference["error"] is None else f" ± {100 * difference['error']:.1f}"
  return f"{100 * difference['mean']:+.1f}{error}"


def make_folder(out: str) -> None:
  """Makes the folder of --out."""
  try:
    storage.place(out).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise not_writable(out, error) from error


def not_writable(out: str, error: OSError) -> SettingError:
  """Returns the error of a folder --out that does not take a file."""
  return SettingError(
    f"--out={out!r}: cannot be written ({error.strerror or error}); use another folder"
  )


def write_samples(out: str, samples: list[dict[str, Any]]) -> None:
  """Writes samples.jsonl and samples.html to a folder."""
  from grpo_jax.reports import inspector

  folder = storage.place(out)
  try:
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    storage.write(folder / "samples.jsonl", lines.encode())
    shown, is_all = inspector.first_groups(samples, inspector.LARGEST)
    page = inspector.page(shown, storage.title(folder)).encode(errors="replace")
    storage.write(folder / "samples.html", page)
    print(folder / "samples.html", flush=True)
    if not is_all:
      print(
        f"warning: samples.html has the first {len(shown)} of {len(samples)} samples, which is as "
        "much as a browser opens; samples.jsonl has all",
        flush=True,
      )
  except OSError as error:
    raise not_writable(out, error) from error


if __name__ == "__main__":
  arguments.define_experiment()
  flags.DEFINE_multi_string(
    "path", None, "A Hugging Face folder or the workdir of a run; several are compared."
  )
  flags.DEFINE_multi_integer(
    "step", None, "Of the runs' checkpoints; their export, or the last one, by default."
  )
  flags.DEFINE_string(
    "out", None, "Folder for samples.html and samples.jsonl: a new or an empty one."
  )
  app.run(main, flags_parser=arguments.parse_flags)
