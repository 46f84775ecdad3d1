"""A rollout that can be read while it is sampled: the tokens of `sampler.Sampler`, a few at a time.

Noise is a function of (key, prompt, sample, position) here as there, so the completions are the
same. On a mesh of several devices the shards of prompts do not wait for one another, and there is
nothing to read before the end.

Shape letters: P prompts, G samples of each, L completion tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.sampling import decode_loop, sampler
from grpo_jax.sampling.decode_loop import Queue, SamplerSetup, Slots
from grpo_jax.sampling.sampler import Request
from grpo_jax.types import STOPPED, TRUNCATED, Array, Prompts


class Sampled(NamedTuple):
  """What is sampled so far, numpy."""

  tokens: np.ndarray  # [P, G, L]
  lengths: np.ndarray  # [P, G], those that are sampled
  ended: np.ndarray  # [P, G], STOPPED or TRUNCATED; without meaning before the last


def begin(setup: SamplerSetup, params: Params, prompts: Prompts, key: Array) -> tuple[Queue, Slots]:
  """Returns the queue of all samples and a slot for each, with its first token."""
  samples = jnp.arange(setup.group)
  queue = sampler.prefill(
    setup, params, Request(prompts, jnp.arange(prompts.tokens.shape[0]), samples, key, None), None
  )
  return queue, decode_loop.start(setup, queue)


def go_on(setup: SamplerSetup, params: Params, queue: Queue, slots: Slots, until: Array) -> Slots:
  """Returns the slots after `until` (`[]`) steps in all, or when no sample goes on."""
  for block, (first, end) in enumerate(setup.blocks):
    in_time = functools.partial(_in_time, first, end, until)
    slots = jax.lax.while_loop(
      in_time, functools.partial(decode_loop.decode_step, setup, params, queue, block), slots
    )
  return slots


def _in_time(first: int, end: int, until: Array, slots: Slots) -> Array:
  """Returns whether the next step is one that writes a column of the block, and before `until`,
  `[]` bool.
  """
  return decode_loop.can_decode(first, end, slots) & (slots.step < until)


@dataclasses.dataclass(frozen=True)
class Stream:
  """A policy's completions as they grow. Weights are made ready once, by `sampler.ready`."""

  sampler: sampler.Sampler
  setup: SamplerSetup
  begin: Callable  # jitted `begin`
  go_on: Callable  # jitted `go_on`

  def __call__(self, ready: Params, prompts: Prompts, key: Array, every: int) -> Iterator[Sampled]:
    """Yields what is sampled after each `every` tokens, and last the whole; on several devices the
    whole alone.

    Args:
      ready: `sampler.ready(params)`.
      prompts: `[P, Lp]`, where `sampler.layout` says.
      key: of this rollout.
      every: at least 1.
    """
    if self.sampler.layout.mesh.size > 1:
      found, _ = self.sampler.run(ready, prompts, key, None, prompt_size=None)
      yield Sampled(*jax.device_get((found.tokens, found.lengths, found.ended)))
      return
    queue, slots = self.begin(ready, prompts, key)
    shape, until = (prompts.tokens.shape[0], self.setup.group), 0
    while True:
      tokens, lengths, stopped, goes_on = jax.device_get(
        (slots.tokens, slots.lengths, slots.stopped, slots.active.any())
      )
      ended = np.where(stopped, STOPPED, TRUNCATED)
      yield Sampled(tokens.reshape(*shape, -1), lengths.reshape(shape), ended.reshape(shape))
      if not goes_on:
        return
      until += every
      slots = self.go_on(ready, queue, slots, until)


def make_stream(decoder: Decoder, cfg: Any, stop_tokens: tuple[int, ...]) -> Stream:
  """Returns the stream of a policy; arguments and errors: see `sampler.make_sampler`. `cfg.slots`
  is not read.
  """
  setup = dataclasses.replace(sampler.make_setup(decoder, cfg, stop_tokens), slots=0)
  return Stream(
    sampler=sampler.make_sampler(decoder, cfg, stop_tokens),
    setup=setup,
    begin=jax.jit(functools.partial(begin, setup)),
    go_on=jax.jit(functools.partial(go_on, setup)),
  )
