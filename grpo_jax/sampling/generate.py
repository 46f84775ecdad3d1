"""Generates completions for examples: renders prompts, samples, and reads the tokens as text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.data import loader
from grpo_jax.environments.base import Environment
from grpo_jax.models.shape import Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import episodes, rollouts
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sampling.stream import Seen
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Completion, Example, KnownRollouts


class Generator(NamedTuple):
  """A sampler with what it needs to turn text into text; only `sizes` grows during a run."""

  sample: Sampler
  sizes: Sizes  # on the learner's layout
  tokenizer: Tokenizer
  render: Callable[[str], list[int]]  # question -> prompt ids
  max_prompt_length: int  # tokens
  on_long: str = "skip"  # treatment of longer prompts, see `loader.to_prompts`
  environment: Environment | None = None  # that answers turns; None: completions have one turn


class Generated(NamedTuple):
  """Holds a group of completions for each example."""

  rollouts: KnownRollouts  # of P prompts, see rollouts.py
  statistics: Json  # of the sampler, and `prompts_too_long`, the number of such prompts
  # messages of the environment where it failed, by (prompt, sample)
  faults: dict[tuple[int, int], str]


def generate(
  generator: Generator,
  params: Params,
  examples: Sequence[Example | None],
  key: jax.Array,
  see: Callable[[Seen], None] | None = None,
  games: np.ndarray | None = None,
) -> Generated:
  """Samples a group of completions for each example; with an environment, of whole episodes.

  Args:
    generator: the sampler and its prompts' format.
    params: the policy's tree.
    examples: [P]; None, like a prompt that is skipped for its length, only fills the batch.
    key: of this batch's noise.
    see: called with what is sampled so far, while the rest is sampled; not where an environment
      answers.
    games: [P], the numbers that an environment's `reset` is given; None: they follow from `key`.
  """
  prompts, too_long = loader.to_prompts(
    examples, generator.render, generator.max_prompt_length, generator.on_long
  )
  faults: dict[tuple[int, int], str] = {}
  if generator.environment is None:
    sampled, statistics = rollouts.draw(
      generator.sample, params, prompts, key, generator.sizes, see=see
    )
  else:
    shown = [e if n else None for e, n in zip(examples, prompts.lengths)]
    sampled, statistics, faults = episodes.play(
      generator.sample,
      generator.environment,
      params,
      prompts,
      shown,
      key,
      generator.sizes,
      generator.tokenizer,
      games,
    )
  return Generated(sampled, statistics | {"prompts_too_long": too_long}, faults)


def completions(generator: Generator, sampled: KnownRollouts) -> list[list[Completion | None]]:
  """Returns completions as rewards see them, `[P][G]`; None if another process has them."""
  return rollouts.completions(sampled, generator.tokenizer)
