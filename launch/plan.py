"""Plans a run on TPUs before they are rented, by compiling for chips that are not there.

    python -m launch.plan --config=experiments/gsm8k.py:model=qwen3_0.6b --topology=v5e:2x4 \\
      --out=docs/plans/NAME.md

It prints and saves a page: memory of a chip by part, traffic between chips, an estimate of time,
programs, and the cost at --price a chip-hour. Settings are overridden as for experiments/run.py
(--config.mesh.tensor=4). It needs libtpu (pip install 'jax[tpu]' -c constraints.txt), but no
weights, data or chips. A program takes the compiler one to five minutes on two cores; the results
are kept in --cache.

    --sweep        tries mesh splits, microbatches and chunks, and ranks those that fit
    --scaling      keeps the load of a chip on 4 to 1,024 chips of --topology's family, as a table
                   and a plot
"""

import importlib.util
import os
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING

from absl import app, flags

from experiments import arguments
from grpo_jax.config import sections
from grpo_jax.io import storage

if TYPE_CHECKING:
  from grpo_jax.setup.experiment import Experiment

FLAGS = flags.FLAGS
COMMAND = "python -m launch.plan"
MARK = f"\n\n    {COMMAND} "  # of each page, below its title


def main(argv: list[str]) -> None:
  """Makes and prints the page that the flags describe, and saves it to --out."""
  del argv
  with arguments.one_line_errors():
    if not FLAGS.topology:
      arguments.fail("--topology is missing: the chips to plan for, as in --topology=v5e:2x4")
    if FLAGS["most"].present and not FLAGS.sweep:
      arguments.fail("--most without --sweep: it is not read there; leave it out")
    if FLAGS.sweep and FLAGS.scaling:
      arguments.fail("--sweep with --scaling: use one of them")
    for name in ("sweep", "scaling"):
      unread = {"price", "note", "details", *({"slices"} if name == "scaling" else ())}
      if FLAGS[name].value and (given := [flag for flag in sorted(unread) if FLAGS[flag].present]):
        arguments.fail(f"--{given[0]} with --{name}: it is not read there; leave it out")
    _check_out()
    made = _sweep() if FLAGS.sweep else _scaling() if FLAGS.scaling else _plan()
  print(made)
  if FLAGS.out:
    pathlib.Path(FLAGS.out).write_text(made, encoding="utf-8")


def _check_out() -> None:
  """Refuses an --out that cannot be written, or that would replace another file than a page."""
  if FLAGS.scaling and not FLAGS.out:
    arguments.fail("--scaling without --out: it draws a plot beside its page, as in --out=PAGE.md")
  if not FLAGS.out:
    return
  storage.check_disk("--out", FLAGS.out, "a page is written to a disk")
  storage.check_file("--out", FLAGS.out, ".md")
  place, picture = _places()
  text = place.read_text(encoding="utf-8", errors="replace") if place.exists() else ""
  files = {place: MARK, picture: f"]({picture.name})"} if FLAGS.scaling else {place: MARK}
  for file, mark in files.items():
    if file.exists() and mark not in text:
      arguments.fail(
        f"--out={FLAGS.out}: {file} exists and is not a page of this command, or its plot; use "
        "another name"
      )
  if FLAGS.scaling and importlib.util.find_spec("matplotlib") is None:
    arguments.fail("--scaling draws a plot: matplotlib is missing (pip install matplotlib)")


def _places() -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the files of the page and of its plot."""
  place = pathlib.Path(FLAGS.out)
  return place, place.with_suffix(".png")


def _plan() -> str:
  from grpo_jax.plan import page, parts
  from grpo_jax.plan.make import make_plan

  plan = make_plan(
    _experiment(), FLAGS.topology, FLAGS.slices, price=FLAGS.price, note=FLAGS.note, **_common()
  )
  if FLAGS.details:
    for facts in (plan.learn, plan.weights, plan.sample):
      print("\n".join((f"{facts.name}:", *parts.details(facts.collectives or ()))))
  return page.text(plan)


def _sweep() -> str:
  from grpo_jax.plan import sweep

  return sweep.text(_experiment(), FLAGS.topology, FLAGS.slices, FLAGS.most, **_common())


def _scaling() -> str:
  from grpo_jax.plan import scaling

  return scaling.text(_experiment(), FLAGS.topology, _places()[1], **_common())


def _experiment() -> "Experiment":
  """Returns the experiment of --config, whose sizes may be too large for this machine."""
  from grpo_jax.setup.experiment import make

  sections.check(FLAGS.config)
  return make(FLAGS.config)


def _common() -> dict:
  return {
    "mean_length": FLAGS["mean-length"].value,
    "mean_prompt": FLAGS["mean-prompt"].value,
    "cache": FLAGS.cache,
    "command": f"{COMMAND} {shlex.join(sys.argv[1:])}",
  }


if __name__ == "__main__":
  os.environ["JAX_PLATFORMS"] = "cpu"  # of this machine; before jax is imported
  arguments.define_experiment()
  flags.DEFINE_string("topology", None, "Chips to plan for: FAMILY:SHAPE, as v5e:2x4 or v5p:4x4x2.")
  flags.DEFINE_integer("slices", 1, "So many slices of that topology.", lower_bound=1)
  flags.DEFINE_integer(
    "mean-length", 0, "Tokens of a completion in the mean; 0: all are sampler.max_length."
  )
  flags.DEFINE_integer(
    "mean-prompt", 0, "Tokens of a prompt in the mean; 0: all are data.max_prompt_length."
  )
  flags.DEFINE_float("price", 0.0, "Of a chip for an hour.", lower_bound=0.0)
  flags.DEFINE_string(
    "note", "", "What the page says below the estimate, as a figure to compare it with."
  )
  flags.DEFINE_string(
    "out", "", "File for the page, as docs/plans/NAME.md; --scaling puts its plot beside it."
  )
  flags.DEFINE_string("cache", "runs/plans", "Folder for what the compiler found; '' for none.")
  flags.DEFINE_bool("details", False, "Print every group of alike collectives, too.")
  flags.DEFINE_bool(
    "sweep", False, "Try mesh splits, microbatches and chunks, and rank those that fit."
  )
  flags.DEFINE_integer("most", 12, "With --sweep: try so many at most.", lower_bound=1)
  flags.DEFINE_bool("scaling", False, "The same load a chip on 4 to 1,024 chips.")
  app.run(main, flags_parser=arguments.parse_flags)
