"""Samples new completions, and continues those that have begun.

Shape letters: P prompts, B of them with samples that have begun.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed import hosts
from grpo_jax.models.shape import Params
from grpo_jax.packing import plan
from grpo_jax.packing.sizes import BEGUN, CARRIED, Sizes
from grpo_jax.sampling import rollouts, stream
from grpo_jax.sampling.begun import Begun, Carried
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sampling.stream import Seen
from grpo_jax.types import HostPrompts, HostRollouts, Prompts, Rollouts


def draw(
  sample: Sampler,
  ready: Params,
  prompts: HostPrompts,
  key: jax.Array,
  sizes: Sizes,
  begun: Begun[np.ndarray] | None,
  carried: Carried[np.ndarray] | None = None,
  see: Callable[[Seen], None] | None = None,
) -> tuple[HostRollouts, np.ndarray, Json]:
  """Returns a turn of every unfinished sample, which samples are this process's, and statistics.

  Args:
    sample: made by `sampler.make_sampler`.
    ready: the policy as it decodes.
    prompts: `[P, Lp]`.
    key: of this rollout.
    sizes: of the programs made so far.
    begun: from `so_far`; None: it is the first turn, which the program of a single turn samples.
    carried: the prompts that are waited for, numpy arrays; None: all.
    see: called with what is sampled so far, while the rest is sampled.
  """
  if begun is None:
    prompts, prompt_size = sizes.for_sampler(prompts, sample.layout)
  else:
    prompts, begun = packed(sample, prompts, sizes, begun, BEGUN if carried is None else CARRIED)
    prompt_size = None
  on_mesh = rollouts.to_device(sample.layout, (prompts, begun, carried))
  if see is None:
    drawn, statistics = sample.run(
      ready, on_mesh[0], key, None, sample.stop_table, *on_mesh[1:], prompt_size=prompt_size
    )
  else:
    drawn, statistics = stream.watched(
      sample, ready, on_mesh[0], key, see, *on_mesh[1:], prompt_size
    )
  is_mine = hosts.share(drawn.tokens)[1]
  drawn, statistics = rollouts.to_host((drawn, statistics))
  return drawn, is_mine, statistics


def packed(
  sample: Sampler, prompts: HostPrompts, sizes: Sizes, begun: Begun[np.ndarray], most: int
) -> tuple[HostPrompts, Begun[np.ndarray]]:
  """Returns prompts in the width of a program, and begun samples with their packing.

  The prompts of samples that are all finished become empty.
  """
  first = first_places(len(prompts.lengths), len(begun.lengths), sample.layout.size("prompt"))
  lengths = prompts.lengths.copy()
  lengths[first] *= begun.unfinished.any(axis=1)
  asked = Prompts(prompts.tokens[first], lengths[first])
  zeros = np.zeros(begun.tokens.shape, np.float32)
  whole = Rollouts(asked, begun.tokens, begun.lengths, begun.lengths, zeros, zeros)
  whole, packing = sizes.for_begun(whole, sample.layout, most, longest=int(lengths.max()))
  tokens = np.where(lengths[:, None] > 0, prompts.tokens, 0)
  prompts = plan.to_width(Prompts(tokens, lengths), whole.prompts.tokens.shape[1])
  return prompts, dataclasses.replace(begun, packing=packing)


def first_places(count: int, chosen: int, shards: int) -> np.ndarray:
  """Returns the first places of each shard, `chosen` of all shards together, of `count`."""
  return np.arange(count).reshape(shards, -1)[:, : chosen // shards].reshape(-1)
