"""Measures what an update of each row of experiments/presets.py costs beside one of plain `grpo`.

    python -m experiments.measure.update_costs --config=experiments/arithmetic.py \\
      [--rows=grpo,ppo,gkd] [--rounds=5] [--out=costs.md]

The policy that the config starts from samples and scores one batch, from which every row learns;
rows of offline data take it as samples, as solutions, or as pairs (each prompt for every two of its
completions). A teacher or reference has the same weights, and is asked what the row asks it. What
moves it after a step (`reference.ema`) is not measured.

Seconds are those of the whole jitted update, with one update of the optimizer whatever the row asks
for (learner.mu and learner.minibatches are 1). `grpo` and the row take turns, `rounds` times, and
the ratio is that of their medians. Memory is what the compiler reports of the same program on one
device: arguments (weights, moments, batch), temporaries, and results that are not in place. The
table also has what the row itself asks for: its updates on a rollout, the passes without a gradient
before them, and the memory of that program. The pass of the old policy that several updates need is
among the passes, and not in the seconds of one.
"""

import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from experiments import arguments, config_files, presets
from grpo_jax.config import sections
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.learning.state import TrainState
from grpo_jax.loops import teacher_prompts
from grpo_jax.loops.collect import score
from grpo_jax.loops.collector import Collector, make_collector
from grpo_jax.loops.groups import Scored
from grpo_jax.loops.learner import Learner
from grpo_jax.objectives import common
from grpo_jax.objectives.base import Needs, reads_reference
from grpo_jax.sampling import rollouts
from grpo_jax.sampling.generate import generate
from grpo_jax.setup import build, registry, resolve
from grpo_jax.setup.experiment import Experiment, changed
from grpo_jax.types import HostRollouts

BASE = "grpo"
# Papers of docs/papers.md that are settings of a row: name -> (row, settings).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
  "grpo_kl": ("grpo", {"objective.beta": 0.04}),
  "rloo": ("grpo", {"objective.baseline": "leave_one_out", "objective.scale": "none"}),
  "clip_delta": ("grpo", {"objective.clip_delta": 4.0}),
  "gdpo": ("grpo", {"objective.advantage": "gdpo"}),
  "entropy_bonus": ("grpo", {"objective.entropy_bonus": 0.001}),
  "muon": ("grpo", {"learner.optimizer": "muon"}),
  "areal": ("grpo", {"objective.mismatch": "token", "learner.mu": 4}),
}
ROWS = (*presets.PRESETS, *VARIANTS)
ONE_UPDATE = {"learner.mu": 1, "learner.minibatches": 1}
HEADER = (
  "| row | time of an update | memory | updates that it asks for | its memory | its passes without "
  "a gradient | trees |"
)


class Drawn(NamedTuple):
  """Holds a batch on the host, sampled and scored, with its collector."""

  collector: Collector
  batch: Scored


class Program(NamedTuple):
  """Holds a compiled update with its arguments."""

  update: Callable[..., tuple]
  state: TrainState  # donated by an update
  constants: tuple  # the other arguments
  memory: int  # bytes on one device


class Cost(NamedTuple):
  """Holds the costs of a row; ratios are to those of BASE."""

  name: str
  time: float  # ratio, of one update
  memory: float  # ratio, of the same program
  seconds: float  # median, of one update
  bytes: int  # of the same program
  updates: int  # on a rollout, that the row asks for
  memory_asked: float  # ratio, of the program with all of them
  passes: tuple[str, ...]  # without a gradient, before them
  trees: tuple[str, ...]


# -- the experiments of the rows


def row_config(path: str, overrides: dict[str, Any], row: str) -> ConfigDict:
  """Returns the config of a row, as a run has it.

  Args:
    path: FILE[:arguments] of an experiment with the argument `objective`.
    overrides: settings from the command line, by their dotted names.
    row: one of ROWS.
  """
  preset, changes = VARIANTS.get(row, (row, {}))
  module, of_row = presets.PRESETS[preset]
  # a teacher with prompts of its own is what the policy was
  teacher = "" if "reference.prompt" in of_row else registry.objective(module).teacher
  separator = "," if ":" in path else ":"
  asked = f"{path}{separator}objective={preset}"
  config = config_files.load(asked + (",teacher=its own start" if teacher else ""))
  config.update_from_flattened_dict(changes | overrides)
  if teacher:  # has the weights that the policy starts from
    config.update_from_flattened_dict({teacher: config.init_from})
  sections.check(config)
  return config


def passes(experiment: Experiment) -> tuple[str, ...]:
  """Returns whose passes without a gradient come before the updates of a rollout."""
  needs, cfg = experiment.objective.needs, experiment.learner
  names = [_other(experiment)] if reads_reference(needs) else []
  if cfg.mu * cfg.minibatches > 1 or needs & (Needs.OLD_POLICY | Needs.CRITIC):
    names.append("old policy")
  return (*names, "critic") if Needs.CRITIC in needs else tuple(names)


def trees(experiment: Experiment) -> tuple[str, ...]:
  """Returns the names of the trees of parameters that an update holds."""
  needs = experiment.objective.needs
  critic = ("critic",) if Needs.CRITIC in needs else ()
  other = (_other(experiment),) if reads_reference(needs) else ()
  return ("policy", *critic, *other)


def _other(experiment: Experiment) -> str:
  """Returns whether the tree that is compared with is a teacher or a reference."""
  return "teacher" if experiment.objective.objective.teacher else "reference"


# -- what they learn from


def draw(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> Drawn:
  """Returns a batch of the policy that the experiment starts from."""
  model = build.model(experiment, devices)
  collector = make_collector(experiment, model)
  examples, key = next(collector.batches), build.key(experiment.seed, build.SAMPLE, 0)
  drawn, *_ = generate(collector.generator, model.load(), examples, key)
  batch = score(collector, examples, drawn)
  return Drawn(collector, batch._replace(rollouts=rollouts.to_host(batch.rollouts)))


def as_pairs(batch: HostRollouts) -> HostRollouts:
  """Returns groups of two, [P G / 2, 2, ...]: a prompt for every two of its completions."""
  prompts, group = batch.lengths.shape
  # the prompts' arrays have no axis of completions
  repeated = jax.tree.map(lambda x: np.repeat(x, group // 2, axis=0), batch.prompts)
  fields: dict[str, Any] = {
    name: value if value is None else value.reshape(prompts * group // 2, 2, *value.shape[2:])
    for name, value in vars(batch).items()
    if name != "prompts"
  }
  return type(batch)(prompts=repeated, **fields)


def _warn(_: str, text: str) -> None:
  print(f"warning: {text}", file=sys.stderr)


def learned_from(experiment: Experiment, drawn: Drawn) -> HostRollouts:
  """Returns the batch as the data that the experiment's objective learns from."""
  if experiment.source == "live":
    asked, _ = teacher_prompts.ask(experiment, *drawn, _warn)
    return rollouts.to_host(asked.rollouts)
  written = common.written(drawn.batch.rollouts)
  return as_pairs(written) if experiment.source == "pairs" else written


# -- the measurement


def make_program(
  experiment: Experiment, drawn: Drawn, devices: Sequence[jax.Device] | None = None
) -> Program:
  """Returns the compiled update of an experiment on what `draw` returns."""
  data = learned_from(experiment, drawn)
  experiment = changed(experiment, {"data.prompts": len(data.lengths)})
  model = build.model(experiment, devices)
  learner = Learner(experiment, model, experiment.sampler.temperature)
  learner.start()
  learner.load_reference({})
  *own, asked = rollouts.to_device(model.layout, learner.packed(data))
  constants = (learner.ref_params, None, *own, learner.base, asked)
  update = learner.jitted_learn.lower(learner.state, *constants).compile()
  m = update.memory_analysis()
  assert m is not None
  memory = m.argument_size_in_bytes + m.temp_size_in_bytes
  memory += m.output_size_in_bytes - m.alias_size_in_bytes
  return Program(update, learner.state, constants, memory)


def timed(program: Program) -> tuple[Program, float]:
  """Returns the program with the state after an update, and the update's seconds."""
  start = time.perf_counter()
  state, *_ = jax.block_until_ready(program.update(program.state, *program.constants))
  return program._replace(state=state), time.perf_counter() - start


def in_turn(base: Program, other: Program, rounds: int) -> tuple[Program, float, float]:
  """Returns the base after its updates, and the median seconds of both, which take turns."""
  base, other = timed(base)[0], timed(other)[0]  # the first touches memory that is new
  seconds = []
  for _ in range(rounds):
    base, first = timed(base)
    other, second = timed(other)
    seconds.append((first, second))
  ours, theirs = (statistics.median(x) for x in zip(*seconds))
  return base, ours, theirs


def measure(
  config_of: Callable[[str], ConfigDict],
  rows: Sequence[str],
  rounds: int,
  show: Callable[[Cost], None] = lambda cost: None,
  devices: Sequence[jax.Device] | None = None,
) -> list[Cost]:
  """Returns the cost of each row.

  Args:
    config_of: returns the config of a row.
    rows: of ROWS. With BASE among them, the noise of the machine shows as its ratio to itself.
    rounds: how often BASE and the row take turns.
    show: called with the cost of a row once it is measured.
    devices: to shard a batch over; None: all.
  """
  experiments = {row: resolve.resolve(config_of(row)) for row in (BASE, *rows)}
  group = experiments[BASE].sampler.group
  if group % 2 and (of_pairs := [row for row in rows if experiments[row].source == "pairs"]):
    raise SettingError(
      f"--config.sampler.group={group} with pairs: a completion would be left over; use an even "
      f"one, or leave {', '.join(of_pairs)} out of --rows"
    )
  drawn = draw(experiments[BASE], devices)
  base = make_program(changed(experiments[BASE], ONE_UPDATE), drawn, devices)
  costs = []
  for row in rows:
    asked = experiments[row]
    single = make_program(changed(asked, ONE_UPDATE), drawn, devices)
    updates = asked.learner.mu * asked.learner.minibatches
    memory = single.memory if updates == 1 else make_program(asked, drawn, devices).memory
    base, base_seconds, seconds = in_turn(base, single, rounds)
    costs.append(
      Cost(
        row,
        seconds / base_seconds,
        single.memory / base.memory,
        seconds,
        single.memory,
        updates,
        memory / base.memory,
        passes(asked),
        trees(asked),
      )
    )
    show(costs[-1])
    jax.clear_caches()  # programs take mappings of memory, of which Linux gives a process so many
  return costs


# -- the table


def line(cost: Cost) -> str:
  """Returns the row of the table; a ratio within 5% of 1 reads 1.0."""
  return (
    f"| `{cost.name}` | x{cost.time:.1f} ({cost.seconds:.3f} s) | x{cost.memory:.1f} "
    f"({cost.bytes / 1e6:.0f} MB) | {cost.updates} | x{cost.memory_asked:.1f} | "
    f"{', '.join(cost.passes) or 'none'} | {', '.join(cost.trees)} |"
  )


def heading() -> str:
  """Returns the first two lines of the table."""
  return f"{HEADER}\n{'| --- ' * (HEADER.count('|') - 1)}|"


def check(rows: Sequence[str], out: str | None, overrides: Sequence[str]) -> None:
  """Refuses flags with which nothing could be measured or written."""
  if unknown := [row for row in rows if row not in ROWS]:
    raise SettingError(f"--rows={unknown[0]}: no such row; choose from {', '.join(ROWS)}")
  if out:
    storage.check_disk("--out", out, "use a file of a disk")
    storage.check_file("--out", out, ".md", new=True)
  if others := [name for name in overrides if name.startswith("objective.")]:
    raise SettingError(f"--config.{others[0]}: each row has settings of its own; leave it out")


def main(argv: list[str]) -> None:
  """Prints the table, a row at a time, and writes it to --out."""
  del argv
  values, config_flag = flags.FLAGS, flags.FLAGS["config"]
  overrides = config_flags.get_override_values(config_flag)
  with arguments.one_line_errors():
    rows = values.rows or ROWS
    check(rows, values.out, list(overrides))
    path = config_flags.get_config_filename(config_flag)
    print(heading(), flush=True)
    costs = measure(
      functools.partial(row_config, path, overrides),
      rows,
      values.rounds,
      lambda cost: print(line(cost), flush=True),
    )
    if values.out:
      text = "\n".join([heading(), *map(line, costs)])
      try:
        pathlib.Path(values.out).write_text(f"{text}\n", encoding="utf-8")
      except OSError as error:
        raise SettingError(f"--out={values.out}: cannot be written ({error.strerror})") from error


if __name__ == "__main__":
  arguments.define_experiment()
  flags.DEFINE_list("rows", None, "Rows of experiments/presets.py to measure; all by default.")
  flags.DEFINE_integer("rounds", 5, "How often grpo and a row take turns.", lower_bound=1)
  flags.DEFINE_string("out", None, "A Markdown file for the table.")
  app.run(main, flags_parser=arguments.parse_flags)
