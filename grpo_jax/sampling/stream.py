"""A rollout that can be read while it is sampled, a few tokens at a time.

Noise is a function of (key, prompt, sample, position) as in `sampler.Sampler`, so that the
completions are the same. On several devices the shards of prompts do not wait for one another, and
there is nothing to read before the end.

Shape letters: P prompts, G samples of each, L completion tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.config import settings
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.sampling import decode_loop, sampler
from grpo_jax.sampling.decode_loop import Queue, Slots
from grpo_jax.sampling.next_token import SamplerSetup
from grpo_jax.sampling.sampler import Request
from grpo_jax.types import STOPPED, TRUNCATED, Array, Prompts


class Sampled(NamedTuple):
  """Tokens sampled so far, numpy."""

  tokens: np.ndarray  # [P, G, L]
  lengths: np.ndarray  # [P, G], number of tokens sampled
  ended: np.ndarray  # [P, G], STOPPED or TRUNCATED; meaningless before the end


def begin(
  setup: SamplerSetup, params: Params, prompts: Prompts, key: Array, stop_table: Array | None
) -> tuple[Queue, Slots]:
  """Returns the queue of all samples and a slot for each, with its first token."""
  samples = jnp.arange(setup.group)
  request = Request(prompts, jnp.arange(prompts.tokens.shape[0]), samples, key, None, stop_table)
  queue = sampler.prefill(setup, params, request, None)
  return queue, decode_loop.start(setup, queue)


def advance(setup: SamplerSetup, params: Params, queue: Queue, slots: Slots, until: Array) -> Slots:
  """Returns the slots after `until` (`[]`) steps in all, or when no sample is active."""
  for block, (first, end) in enumerate(setup.blocks):
    proceeds = functools.partial(_proceeds, first, end, until)
    decode = functools.partial(decode_loop.decode_step, setup, params, queue, block)
    slots = jax.lax.while_loop(proceeds, decode, slots)
  return slots


def _proceeds(first: int, end: int, until: Array, slots: Slots) -> Array:
  """Returns whether the next step comes before `until` and writes to the block, `[]` bool."""
  return decode_loop.can_decode(first, end, slots) & (slots.step < until)


@dataclasses.dataclass(frozen=True)
class Stream:
  """A policy's completions as they grow; `sampler.ready` prepares the weights once."""

  sampler: sampler.Sampler
  setup: SamplerSetup
  begin: Callable[[Params, Prompts, Array, Array | None], tuple[Queue, Slots]]  # jitted `begin`
  advance: Callable[[Params, Queue, Slots, int], Slots]  # jitted `advance`

  def __call__(self, ready: Params, prompts: Prompts, key: Array, every: int) -> Iterator[Sampled]:
    """Yields completions after each `every` tokens and at the end; on several devices only then.

    Args:
      ready: `sampler.ready(params)`.
      prompts: `[P, Lp]`, placed by `sampler.layout`.
      key: of this rollout.
      every: at least 1.
    """
    if self.sampler.layout.mesh.size > 1:
      table = self.sampler.stop_table
      drawn, _ = self.sampler.run(ready, prompts, key, None, table, prompt_size=None)
      yield Sampled(*jax.device_get((drawn.tokens, drawn.lengths, drawn.ended)))
      return
    queue, slots = self.begin(ready, prompts, key, self.sampler.stop_table)
    shape, until = (prompts.tokens.shape[0], self.setup.group), 0
    while True:
      tokens, lengths, stopped, unfinished = jax.device_get(
        (slots.tokens, slots.lengths, slots.stopped, slots.active.any())
      )
      ended = np.where(stopped, STOPPED, TRUNCATED)
      yield Sampled(tokens.reshape(*shape, -1), lengths.reshape(shape), ended.reshape(shape))
      if not unfinished:
        return
      until += every
      slots = self.advance(ready, queue, slots, until)


def make_stream(
  decoder: Decoder,
  cfg: settings.Sampler,
  stop_tokens: tuple[int, ...],
  stop_table: np.ndarray | None = None,
) -> Stream:
  """Returns the stream of a policy, see `sampler.make_sampler`; `cfg.slots` is ignored."""
  setup = dataclasses.replace(sampler.make_setup(decoder, cfg, stop_tokens), slots=0)
  return Stream(
    sampler=sampler.make_sampler(decoder, cfg, stop_tokens, stop_table),
    setup=setup,
    begin=jax.jit(functools.partial(begin, setup)),
    advance=jax.jit(functools.partial(advance, setup)),
  )
