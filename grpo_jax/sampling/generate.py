"""From examples to completions: prompts rendered, sampled on the mesh, and read as text."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from grpo_jax.data import loader
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Completion, Example, Rollouts


class Generator(NamedTuple):
  """A sampler, and what stands between it and text. Only the programs of `sizes` change during a
  run.
  """

  sample: Sampler
  sizes: Sizes  # on the learner's layout
  tokenizer: Tokenizer
  render: Callable[[str], list[int]]  # question -> prompt ids
  max_prompt_length: int  # tokens
  on_long: str = "skip"  # what becomes of a longer prompt, see `loader.to_prompts`


def generate(
  generator: Generator, params: Any, examples: Sequence[Example | None], key: jax.Array
) -> tuple[Rollouts, dict[str, Any]]:
  """Samples a group of completions for each example.

  Args:
    generator: how.
    params: the policy's tree.
    examples: [P]; None gives a prompt that only fills the batch, and so does one that is skipped
      for its length.
    key: of this batch's noise.

  Returns:
    sampled Rollouts of P prompts (see rollouts.py), and the sampler's statistics with
    `prompts_too_long`, the count of such prompts.
  """
  prompts, too_long = loader.to_prompts(
    examples, generator.render, generator.max_prompt_length, generator.on_long
  )
  sampled, statistics = rollouts.draw(generator.sample, params, prompts, key, generator.sizes)
  return sampled, statistics | {"prompts_too_long": too_long}


def completions(generator: Generator, sampled: Rollouts) -> list[list[Completion | None]]:
  """The text of rollouts as rewards see it, [P][G]; None where another process has it."""
  return rollouts.completions(sampled, generator.tokenizer)
