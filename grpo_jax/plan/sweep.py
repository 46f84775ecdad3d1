"""Tries settings that change neither the data nor the loss, and ranks their plans."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Unpack

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.plan import chips, programs, topology
from grpo_jax.plan.chips import GIB
from grpo_jax.plan.make import Options, make_plan
from grpo_jax.plan.page import Plan
from grpo_jax.setup.experiment import Experiment, changed

TENSORS = (1, 2, 4, 8)
CHUNKS = (1024, 4096)

Settings = dict[str, int]  # by dotted name


class Row(NamedTuple):
  """One plan of a sweep."""

  settings: Settings
  plan: Plan


def text(
  experiment: Experiment,
  where: str,
  slices: int,
  most: int,
  *,
  command: str,
  **options: Unpack[Options],
) -> str:
  """Returns the page of a sweep, the fastest plan that fits first.

  Args:
    experiment: of the run, without the settings to try.
    where, slices: the topology and the number of its slices.
    most: the largest number of plans to try.
    command: the command that makes the page, which shows it.
    options: see `make_plan`.
  """
  programs.check(experiment)
  rows = []
  chip = chips.find_chip(where)
  tried = list(
    itertools.islice(candidates(experiment, len(topology.devices(where, slices)), slices), most)
  )
  for i, settings in enumerate(tried):
    print(f"plan {i + 1} of {len(tried)}: {shown(settings)}", flush=True)
    try:
      rows.append(Row(settings, make_plan(changed(experiment, settings), where, slices, **options)))
    except GrpoError as error:
      print(f"  refused: {error}", flush=True)
  if not rows:
    raise SettingError(
      f"--sweep on {where}: no mesh that was tried divides data.prompts and sampler.group"
    )
  return page(rows, chip.usable, command)


def candidates(experiment: Experiment, devices: int, slices: int) -> Iterator[Settings]:
  """Yields the settings to try: the first microbatch and chunk for each mesh, then the second."""
  prompts, group = experiment.data.prompts, experiment.sampler.group
  meshes = [
    (tensor, split)
    for tensor, split in itertools.product(TENSORS, _divisors(group))
    if devices % (tensor * split * slices) == 0 and prompts % (devices // (tensor * split)) == 0
  ]
  by_mesh = [list(_with_mesh(experiment, devices, slices, *mesh)) for mesh in meshes]
  for choices in itertools.zip_longest(*by_mesh):
    yield from (settings for settings in choices if settings)


def _with_mesh(
  experiment: Experiment, devices: int, slices: int, tensor: int, split: int
) -> Iterator[Settings]:
  """Yields the settings to try with a mesh: small microbatches first, which take little memory."""
  shards, minibatch = (
    devices // (tensor * split),
    experiment.data.prompts // experiment.learner.minibatches,
  )
  mesh = {"mesh.replica": slices, "mesh.fsdp": -1, "mesh.group": split, "mesh.tensor": tensor}
  at_once = [
    n * shards for n in _divisors(max(1, minibatch // shards)) if minibatch % (n * shards) == 0
  ]
  for chunk, microbatch in itertools.product(
    dict.fromkeys((experiment.learner.chunk, *CHUNKS)), at_once
  ):
    yield mesh | {"learner.microbatch": microbatch, "learner.chunk": chunk}


def _divisors(n: int) -> list[int]:
  return [d for d in range(1, n + 1) if n % d == 0]


def shown(settings: Settings) -> str:
  """Returns settings as flags of the command."""
  return " ".join(f"--config.{name}={value}" for name, value in settings.items())


def page(rows: list[Row], usable: float, command: str) -> str:
  """Returns the table of a sweep: first the plans that fit, then by the time without overlap."""
  ranked = sorted(rows, key=lambda row: (not row.plan.fits, row.plan.estimate.step_s[1]))
  first = ranked[0].plan
  lines = [
    f"# Sweep: {programs.model_name(first.workload.experiment)} on {first.topology}",
    "",
    f"    {command}",
    "",
    f"{len(rows)} plans, ranked by whether they fit {usable / GIB:.2f} GiB and by the estimated "
    "step in which no communication hides. Estimates, no measurement; `python -m launch.plan` with "
    "the settings of a row has its page.",
    "",
    "| fits | tensor | group | microbatch | chunk | learn GiB | sample GiB | moved GB | learn s | "
    "sample s | step s |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for settings, plan in ranked:
    e, moved = plan.estimate, plan.learn.collectives
    total = (
      f"{sum(collective.total for collective in moved) / 1e9:.1f}" if moved is not None else "?"
    )
    lines.append(
      f"| {'yes' if plan.fits else 'no'} | {settings['mesh.tensor']} | {settings['mesh.group']} | "
      f"{settings['learner.microbatch']} | {settings['learner.chunk']} | "
      f"{plan.learn_memory.total / GIB:.2f} | {plan.sample_memory.total / GIB:.2f} | {total} | "
      f"{_range(e.learn_s)} | {_range(e.sample_s)} | {_range(e.step_s)} |"
    )
  return "\n".join([*lines, "", f"The first row: `{shown(ranked[0].settings)}`", ""])


def _range(seconds: tuple[float, float]) -> str:
  return f"{seconds[0]:.2f} to {seconds[1]:.2f}"
