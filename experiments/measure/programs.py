"""Counts the programs that a run would compile, and its padding, for some `learner.sizes`.

    python -m experiments.measure.programs

Lengths are drawn and nothing is compiled. Completions are log-normal, with a median whose logarithm
grows evenly over the steps; those of a prompt are alike, and the longest are cut off. Prompts do
not grow. It prints a row for each growth and each `learner.sizes`: the programs of the learner (in
brackets those of the first 100 steps) and of the sampler, and the shares of padding among the
tokens of completions and of prompts that the learner computes.
"""

import dataclasses

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.distributed import sharding
from grpo_jax.distributed.sharding import Layout
from grpo_jax.packing import plan
from grpo_jax.packing.sizes import Sizes
from grpo_jax.setup import defaults
from grpo_jax.types import Prompts, Rollouts

BOUNDS = (0, 2, 4, 8, 16)
GROWTHS = (1.0, 2.0, 4.0)
FIRST_STEPS = 100
START = 0.12  # the median completion of the first step, of the longest
SPREAD, SPREAD_OF_PROMPTS = 0.7, 0.5  # of the logarithms of lengths: within a group, and of groups
MEDIAN_PROMPT = 0.25  # of the longest


@dataclasses.dataclass(frozen=True)
class On(Layout):
  """A layout that says it is of another platform."""

  platform: str = "cpu"


@dataclasses.dataclass(frozen=True)
class Workload:
  """Lengths that are drawn."""

  steps: int = 500
  prompts: int = 32
  group: int = 8
  length: int = 1024
  width: int = 512
  seed: int = 0


def batch(work: Workload, rng: np.random.Generator, median: float) -> tuple[Prompts, Rollouts]:
  """Returns numpy prompts of full width, and rollouts with prompts trimmed for the sampler."""
  alike = rng.normal(np.log(median * work.length), SPREAD_OF_PROMPTS, (work.prompts, 1))
  lengths = np.clip(
    rng.lognormal(alike, SPREAD, (work.prompts, work.group)), 1, work.length
  ).astype(np.int32)
  of_prompts = rng.lognormal(np.log(MEDIAN_PROMPT * work.width), SPREAD_OF_PROMPTS, work.prompts)
  prompts = Prompts(
    np.zeros((work.prompts, work.width), np.int32),
    np.clip(of_prompts, 1, work.width).astype(np.int32),
  )
  zeros = np.zeros((*lengths.shape, work.length), np.float32)
  return prompts, Rollouts(
    plan.trim(prompts), zeros.astype(np.int32), lengths, np.zeros_like(lengths), zeros, zeros
  )


def count(work: Workload, layout: Layout, most: int, growth: float) -> dict[str, float]:
  """Returns a row: programs of learner, its first steps and sampler; padding of each kind."""
  rng, sizes = np.random.default_rng(work.seed), Sizes(most, layout, work.width, microbatches=1)
  learner, sampler, first = set(), set(), 0
  real, computed = np.zeros(2), np.zeros(2)
  for step in range(work.steps):
    prompts, rollouts = batch(work, rng, START * growth ** (step / work.steps))
    trimmed, list_size = sizes.for_sampler(prompts, layout)
    sampler.add((trimmed.tokens.shape, list_size))
    rollouts, packing = sizes.for_learner(dataclasses.replace(rollouts, prompts=trimmed))
    rows = None if packing.token_index is None else packing.token_index.shape
    learner.add((rollouts.prompts.tokens.shape, rows, packing.list_size, packing.prompt_list_size))
    first = len(learner) if step < FIRST_STEPS else first
    shares = plan.padding(rollouts, packing, layout)
    tokens = np.array([rollouts.lengths.sum(), rollouts.prompts.lengths.sum()])
    real += tokens
    computed += tokens / (
      1 - np.array([shares["padding_fraction"], shares["prompt_padding_fraction"]])
    )
  completions, of_prompts = 1 - real / computed
  return {
    "learner": len(learner),
    "first": first,
    "sampler": len(sampler),
    "completions": completions,
    "prompts": of_prompts,
    "both": 1 - real.sum() / computed.sum(),
  }


def layout_of(platform: str, mesh: ConfigDict) -> Layout:
  """Returns a layout of one device of this machine that says it is of `platform`."""
  one = sharding.make_layout(mesh, jax.devices()[:1])
  return On(one.mesh, one.rules, platform)


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  work = Workload(steps=flags.FLAGS.steps)
  layout = layout_of(flags.FLAGS.platform, defaults.get_config().mesh)
  print(
    "| growth | sizes | learner's programs | sampler's | padding of completions | of prompts | of "
    "both |"
  )
  print("| --- | --- | --- | --- | --- | --- | --- |")
  for growth in GROWTHS:
    for most in BOUNDS:
      n = count(work, layout, most, growth)
      print(
        f"| {growth:g} | {most} | {n['learner']} ({n['first']}) | {n['sampler']} | "
        f"{n['completions']:.0%} | {n['prompts']:.0%} | {n['both']:.0%} |",
        flush=True,
      )


if __name__ == "__main__":
  flags.DEFINE_integer("steps", 500, "Steps of a run.", lower_bound=1)
  flags.DEFINE_enum(
    "platform", "tpu", ["cpu", "gpu", "tpu"], "Whose rows: on a TPU a row holds one completion."
  )
  app.run(main, flags_parser=arguments.parse_flags)
