"""Generates completions for examples: renders prompts, samples, and reads the tokens as text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from grpo_jax.aliases import Json
from grpo_jax.data import loader
from grpo_jax.models.shape import Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Completion, Example, Rollouts


class Generator(NamedTuple):
  """A sampler with what it needs to turn text into text; only `sizes` grows during a run."""

  sample: Sampler
  sizes: Sizes  # on the learner's layout
  tokenizer: Tokenizer
  render: Callable[[str], list[int]]  # question -> prompt ids
  max_prompt_length: int  # tokens
  on_long: str = "skip"  # treatment of longer prompts, see `loader.to_prompts`


def generate(
  generator: Generator, params: Params, examples: Sequence[Example | None], key: jax.Array
) -> tuple[Rollouts, Json]:
  """Samples a group of completions for each example.

  Args:
    generator: the sampler and its prompts' format.
    params: the policy's tree.
    examples: [P]; None, like a prompt that is skipped for its length, only fills the batch.
    key: of this batch's noise.

  Returns:
    Sampled rollouts of P prompts (see rollouts.py), and the sampler's statistics with
    `prompts_too_long`, the number of such prompts.
  """
  prompts, too_long = loader.to_prompts(
    examples, generator.render, generator.max_prompt_length, generator.on_long
  )
  sampled, statistics = rollouts.draw(generator.sample, params, prompts, key, generator.sizes)
  return sampled, statistics | {"prompts_too_long": too_long}


def completions(generator: Generator, sampled: Rollouts) -> list[list[Completion | None]]:
  """Returns completions as rewards see them, [P][G]; None if another process has them."""
  return rollouts.completions(sampled, generator.tokenizer)
