"""Shows weak scaling, the same load a chip on ever more chips, as a table and a plot."""

import pathlib
from typing import Unpack

from grpo_jax.errors import SettingError
from grpo_jax.plan import chips, programs
from grpo_jax.plan.chips import GIB
from grpo_jax.plan.make import Options, make_plan
from grpo_jax.plan.page import Plan
from grpo_jax.plan.sweep import changed
from grpo_jax.setup.experiment import Experiment

# (shape, slices) of 4 to 1,024 chips, by the dimensions of the torus.
SIZES = {
  2: (("2x2", 1), ("4x4", 1), ("8x8", 1), ("16x16", 1), ("16x16", 4)),
  3: (("2x2x1", 1), ("2x2x4", 1), ("4x4x4", 1), ("4x8x8", 1), ("4x8x8", 4)),
}
GIGA = 1e9


def text(
  experiment: Experiment,
  where: str,
  picture: pathlib.Path,
  *,
  command: str,
  **options: Unpack[Options],
) -> str:
  """Returns the page of a family of topologies and draws its plot into `picture`.

  Args:
    experiment: of a run on `where`; each chip keeps its share of that load.
    where: a topology of the family.
    picture: a PNG file.
    command: the command that makes the page, which shows it.
    options: see `make_plan`.
  """
  family = where.partition(":")[0]
  plans = []
  for shape, slices in SIZES[2 if chips.find_chip(where).links == 4 else 3]:
    made = at_size(experiment, where, f"{family}:{shape}", slices)
    print(f"{slices} x {family}:{shape}: data.prompts={made.data.prompts}", flush=True)
    plans.append(make_plan(made, f"{family}:{shape}", slices, **options))
  draw(plans, picture)
  return page(plans, command, picture.name)


def count(where: str, slices: int = 1) -> int:
  """Returns the number of chips of `slices` slices of a topology."""
  chips_of_slice = 1
  for n in where.partition(":")[2].split("x"):
    chips_of_slice *= int(n)
  return chips_of_slice * slices


def at_size(experiment: Experiment, where: str, to: str, slices: int) -> Experiment:
  """Returns the config with the prompts that give a chip the same load on `to` as on `where`."""
  chips_now, chips_then = count(where), count(to, slices)
  settings = {"mesh.replica": slices, "mesh.fsdp": -1}
  sampler = experiment.sampler
  scaled = {"data.prompts": experiment.data.prompts, "sampler.slots": sampler.slots}
  scaled |= {"sampler.carry": sampler.carry, "learner.microbatch": experiment.learner.microbatch}
  for name, value in scaled.items():
    if value * chips_then % chips_now:
      raise SettingError(
        f"{name}={value} with --scaling and --topology={where}: {chips_now} chips do not share it "
        f"evenly; use a multiple of {chips_now}"
      )
    settings[name] = value * chips_then // chips_now
  return changed(experiment, settings)


def page(plans: list[Plan], command: str, picture: str) -> str:
  """Returns the table with the plot above it."""
  model = programs.model_name(plans[0].workload.experiment)
  lines = [
    f"# Weak scaling: {model} on {plans[0].topology.partition(':')[0]}",
    "",
    f"    {command}",
    "",
    "The same number of prompts a chip on all sizes. All is of one chip and one step; the seconds "
    "are estimates.",
    "",
    f"![memory, operations and bytes of a chip by the number of chips]({picture})",
    "",
    "| chips | slices | prompts | learning GiB | sampling GiB | TFLOP | update GB | of it across "
    "slices | step s |",
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for plan in plans:
    collectives = plan.learn.collectives or ()
    across = sum(collective.total for collective in collectives if collective.across_slices) / GIGA
    low, high = plan.estimate.step_s
    lines.append(
      f"| {plan.chips:,} | {plan.slices} | {plan.workload.experiment.data.prompts} | "
      f"{plan.learn_memory.total / GIB:.2f} | {plan.sample_memory.total / GIB:.2f} | "
      f"{plan.estimate.learn_flops / plan.chips / 1e12:.1f} | {_moved(plan):.2f} | {across:.2f} | "
      f"{low:.2f} to {high:.2f} |"
    )
  return "\n".join([*lines, ""])


def draw(plans: list[Plan], picture: pathlib.Path) -> None:
  """Draws memory, operations and bytes of a chip by the number of chips."""
  import matplotlib.figure  # optional: the extra `plot`

  x = [plan.chips for plan in plans]
  series = (
    ("memory, GiB", "learning", [plan.learn_memory.total / GIB for plan in plans]),
    ("memory, GiB", "sampling", [plan.sample_memory.total / GIB for plan in plans]),
    (
      "operations of the update, TFLOP",
      "",
      [plan.estimate.learn_flops / plan.chips / 1e12 for plan in plans],
    ),
    ("bytes of collectives, GB", "all", [_moved(plan) for plan in plans]),
    ("bytes of collectives, GB", "sent over links by a ring", [_sent(plan) for plan in plans]),
  )
  titles = list(dict.fromkeys(title for title, *_ in series))
  figure = matplotlib.figure.Figure(figsize=(11, 3.4), layout="constrained")
  axes = dict(zip(titles, figure.subplots(1, len(titles))))
  for title, label, y in series:
    axes[title].plot(x, y, marker="o", label=label)
  for title, panel in axes.items():
    panel.set_title(f"{title}, a chip", fontsize=9)
    panel.set_xscale("log", base=4)
    panel.set_xticks(x, [f"{n:,}" for n in x])
    panel.set_ylim(bottom=0)
    panel.set_xlabel("chips")
    if any(panel.get_legend_handles_labels()[1]):
      panel.legend(fontsize=8)
  picture.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(picture, dpi=120)


def _moved(plan: Plan) -> float:
  return sum(collective.total for collective in plan.learn.collectives or ()) / GIGA


def _sent(plan: Plan) -> float:
  return sum(collective.sent for collective in plan.learn.collectives or ()) / GIGA
