"""Draws the lengths of prompts and completions that a plan assumes, and counts their programs."""

import math

import jax
import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.plan import programs
from grpo_jax.plan.programs import Lengths, Workload
from grpo_jax.setup.experiment import Experiment

MOST_STEPS = 200  # for which lengths are drawn to count programs


def draw(experiment: Experiment, mean_length: int, mean_prompt: int, step: int = 0) -> Lengths:
  """Returns the lengths of a step, the same ones each time.

  Completions are long-tailed: exponential, cut at sampler.max_length, with the mean that is asked
  for after the cut. Prompts are spread evenly around their mean.

  Args:
    experiment: of the run.
    mean_length: tokens of a completion; 0: all have sampler.max_length.
    mean_prompt: tokens of a prompt; 0: all have data.max_prompt_length.
    step: of the run.
  """
  p, g = experiment.data.prompts, experiment.sampler.group
  most, most_prompt = experiment.sampler.max_length, experiment.data.max_prompt_length
  for flag, value, limit in (
    ("--mean-length", mean_length, most),
    ("--mean-prompt", mean_prompt, most_prompt),
  ):
    if not 0 <= value <= limit:
      raise SettingError(
        f"{flag}={value}: use 1 to {limit} tokens, as the config allows, or 0 for full length"
      )
  random = np.random.default_rng(step)
  prompts = np.full(p, most_prompt)
  if mean_prompt:
    spread = min(mean_prompt - 1, most_prompt - mean_prompt)
    prompts = random.integers(mean_prompt - spread, mean_prompt + spread + 1, p)
  completions = np.full((p, g), most)
  if mean_length:
    drawn = -_scale(mean_length, most) * np.log1p(-random.random((p, g)))
    completions = np.clip(np.ceil(drawn), 1, most)
  return Lengths(prompts.astype(np.int32), completions.astype(np.int32))


def _scale(mean: int, most: int) -> float:
  """Returns the scale of the exponential distribution whose mean is `mean` when cut at `most`."""
  low, high = 1e-3, 1e6 * most
  for _ in range(100):
    middle = math.sqrt(low * high)
    cut = middle * -math.expm1(-most / middle)
    low, high = (middle, high) if cut < mean else (low, middle)
  return low


def count_programs(workload: Workload, mean_length: int, mean_prompt: int) -> tuple[int, int, int]:
  """Returns the numbers of learner's and sampler's programs, and of the steps of a run counted."""
  steps = min(workload.experiment.steps, MOST_STEPS) if mean_length or mean_prompt else 1
  learners, samplers, sizes = set(), set(), workload.learner.sizes.fresh()
  for step in range(steps):
    lengths = draw(workload.experiment, mean_length, mean_prompt, step)
    learners.add(_signature(programs.learn_batch(workload, lengths, sizes)))
    samplers.add(_signature(programs.sampler_prompts(workload, lengths, sizes)))
  return len(learners), len(samplers), steps


def _signature(tree: object) -> tuple[object, ...]:
  """Returns the structure, shapes and dtypes for which a jitted function has one program."""
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((x.shape, str(x.dtype)) if hasattr(x, "shape") else x for x in leaves)
