"""Decodes in a loop: each slot samples a token a step, and takes the next sample when it is free.

    start              the slots before the loop
    decode_until_done  refills free slots and decodes steps until no sample is left

Everything here is of one shard of prompts and samples. The loop's state is `Slots`; `SamplerSetup`
and `Queue` hold what does not change in it. kv_cache.py has a picture of the ring of columns that
all slots write.

Shape letters: P prompts, G samples of each, N = P * G, S slots, L completion tokens, Lp prompt
tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models.decoder import Params
from grpo_jax.sampling import begun, kv_cache, next_token
from grpo_jax.sampling.begun import BegunRows
from grpo_jax.sampling.kv_cache import LayerCache, StoredKV
from grpo_jax.sampling.next_token import Noise, SamplerSetup
from grpo_jax.types import Array


class FirstTokens(NamedTuple):
  """First sampled token of every sample; zeros, except for `done`, if nothing is to be sampled."""

  token: Array  # [N] int32
  logprob: Array  # [N] float32
  truncated_logprob: Array  # [N] float32, after top-k, top-p and min-p
  matched: Array | None  # [N] state of the stop texts after it; None: there are none
  stopped: Array  # [N] bool, whether it ends its completion
  done: Array  # [N] bool, whether nothing is left to decode


class Queue(NamedTuple):
  """Samples of a shard in the order in which slots take them, prompt by prompt."""

  # [N] bool; the others only fill the batch: their prompts have length 0, or they had ended
  real: Array
  prompt_lengths: Array  # [P] int32
  forced_lengths: Array | None  # [N] int32, lengths in place of stop tokens; None: stop tokens end
  stop_table: Array | None  # [states, V] uint16, see tokenizer/stop_texts.py; None: no stop texts
  noise: Noise
  prompt_cache: list[StoredKV]  # [P, ...] of each layer
  first: FirstTokens
  begun: BegunRows | None = None  # None: no sample has begun
  due: Array | None = None  # [P] bool, see begun.Carried; None: all prompts are

  @property
  def group(self) -> int:
    """Samples of a prompt in this shard."""
    return self.real.shape[0] // self.prompt_lengths.shape[0]

  @property
  def begun_lengths(self) -> Array:
    """Tokens of each sample before its first sampled one, `[N]`."""
    return jnp.zeros_like(self.first.token) if self.begun is None else self.begun.lengths

  def limits(self, length: int, sample: Array) -> Array | int:
    """Returns the length at which samples `[S]` are truncated; `length` where none has begun."""
    return length if self.begun is None else self.begun.limits[sample]


class Slots(NamedTuple):
  """State of the decoding loop, with the tokens sampled so far."""

  step: Array  # [] int32
  waiting: Array  # [] int32, the next sample of the queue; N: none
  sample: Array  # [S] int32, the sample that the slot decodes
  age: Array  # [S] int32, number of its tokens sampled
  active: Array  # [S] bool, whether it is unfinished
  token: Array  # [S] int32, its last token
  matched: Array | None  # [S] state of the stop texts after that token; None: there are none
  busy: Array  # [] int32, slot-steps that decoded a token
  cache: list[LayerCache]
  tokens: Array  # [N, L] int32
  sampler_logprobs: Array  # [N, L] float32
  truncated_logprobs: Array  # [N, L] float32
  lengths: Array  # [N] int32
  stopped: Array  # [N] bool


def start(setup: SamplerSetup, queue: Queue) -> Slots:
  """Returns the slots before the loop: all active, one for each sample, or fewer, all free."""
  n, first, config = queue.real.shape[0], queue.first, setup.decoder.config
  s, begun_lengths = min(n, setup.slots) if setup.slots else n, queue.begun_lengths

  def first_column(x: Array) -> Array:
    before = jnp.zeros((n, setup.length), x.dtype)
    return before.at[jnp.arange(n), begun_lengths].set(x, mode="drop")

  sizes = [end - begin for begin, end in setup.blocks]
  empty = functools.partial(
    kv_cache.empty, s, config.kv_heads, config.head_dim, dtype=setup.cache_dtype
  )
  rings = [[empty(size) for size in sizes] for _ in queue.prompt_cache]
  if s == n:  # one slot for each sample: they read the prompts' cache without a copy
    waiting, sample, active, token = jnp.int32(n), jnp.arange(n), ~first.done, first.token
    matched, age = first.matched, begun_lengths + 1
    prompt_cache = queue.prompt_cache
    if queue.begun is not None:
      of_slot = functools.partial(begun.ring, queue.begun, setup.blocks, step=jnp.int32(0))
      rings = jax.tree.map(lambda x: x[:, 0], jax.vmap(of_slot)(sample))
  else:
    waiting, sample = next_in_queue(queue, jnp.int32(-1)), jnp.zeros(s, jnp.int32)
    active, token = jnp.zeros(s, bool), jnp.zeros(s, jnp.int32)
    matched = jax.tree.map(lambda x: jnp.zeros(s, x.dtype), first.matched)
    age = jnp.ones(s, jnp.int32)
    prompt_cache = jax.tree.map(lambda x: jnp.zeros((s, *x.shape[1:]), x.dtype), queue.prompt_cache)
  tokens = first_column(first.token)
  if queue.begun is not None:
    tokens = tokens + jnp.where(
      jnp.arange(setup.length) < begun_lengths[:, None], queue.begun.tokens, 0
    )
  return Slots(
    step=jnp.int32(0),
    waiting=waiting,
    sample=sample,
    age=age,
    active=active,
    token=token,
    matched=matched,
    busy=jnp.int32(0),
    cache=[LayerCache(kv, ring) for kv, ring in zip(prompt_cache, rings)],
    tokens=tokens,
    sampler_logprobs=first_column(first.logprob),
    truncated_logprobs=first_column(first.truncated_logprob),
    lengths=jnp.where(queue.real, begun_lengths + 1, 0).astype(jnp.int32),
    stopped=first.stopped,
  )


# -- the loop


def decode_until_done(
  setup: SamplerSetup, params: Params, queue: Queue, slots: Slots, until: Array | None = None
) -> Slots:
  """Returns the slots after the last sample of the queue has ended, or enough groups have.

  With `until` it returns after so many steps in all (`[]` int32), if not before.
  """
  step = functools.partial(refill_and_decode, setup, params, queue, until)
  goes_on = functools.partial(_unfinished_before, setup, queue, until)
  return jax.lax.while_loop(goes_on, step, slots)


def refill_and_decode(
  setup: SamplerSetup, params: Params, queue: Queue, until: Array | None, slots: Slots
) -> Slots:
  """Returns the slots after refills and decoding, until a slot can be refilled again.

  It decodes for at most one turn around the ring of columns (see kv_cache.py), and no step after
  the first `until`, if given.
  """
  slots = jax.lax.while_loop(can_refill, functools.partial(refill, setup, queue), slots)
  for block, (begin, end) in enumerate(setup.blocks):
    in_block = functools.partial(proceeds, setup, queue, begin, end, until)
    decode = functools.partial(decode_step, setup, params, queue, block)
    slots = jax.lax.while_loop(in_block, decode, slots)
  return slots


def unfinished(setup: SamplerSetup, queue: Queue, slots: Slots) -> Array:
  """Returns whether a sample is active or waits, and is needed, `[]` bool."""
  left = slots.active.any() | (slots.waiting < slots.lengths.shape[0])
  return left & needs_more(setup, queue, slots)


def _unfinished_before(
  setup: SamplerSetup, queue: Queue, until: Array | None, slots: Slots
) -> Array:
  left = unfinished(setup, queue, slots)
  return left if until is None else left & (slots.step < until)


def has_ended(setup: SamplerSetup, queue: Queue, slots: Slots) -> Array:
  """Returns which samples get no more tokens, `[N]` bool."""
  limits = queue.limits(setup.length, jnp.arange(queue.real.shape[0]))
  return slots.stopped | (slots.lengths >= limits) | ~queue.real


def needs_more(setup: SamplerSetup, queue: Queue, slots: Slots) -> Array | bool:
  """Returns whether what is not complete may not be left to a later rollout, `[]` bool."""
  if queue.due is None:
    return True
  prompts = queue.due.shape[0]
  complete = has_ended(setup, queue, slots).reshape(prompts, queue.group).all(axis=1)
  return (complete.sum() < prompts - setup.carry) | (queue.due & ~complete).any()


def can_refill(slots: Slots) -> Array:
  """Returns whether a sample waits and a slot is free, `[]` bool."""
  return (slots.waiting < slots.lengths.shape[0]) & ~slots.active.all()


def can_decode(begin: int, end: int, slots: Slots) -> Array:
  """Returns whether the next step decodes into a column in [begin, end) of the ring, `[]` bool."""
  column = slots.step % slots.tokens.shape[1]
  return slots.active.any() & ~can_refill(slots) & (column >= begin) & (column < end)


def proceeds(
  setup: SamplerSetup, queue: Queue, begin: int, end: int, until: Array | None, slots: Slots
) -> Array:
  """Returns whether the next step is needed and decodes into [begin, end), `[]` bool."""
  needed = can_decode(begin, end, slots) & needs_more(setup, queue, slots)
  return needed if until is None else needed & (slots.step < until)


def next_in_queue(queue: Queue, sample: Array) -> Array:
  """Returns the first sample after `sample` (`[]`) that is not done; N if there is none."""
  n = queue.real.shape[0]
  places = jnp.arange(n)
  return jnp.min(places, where=(places > sample) & ~queue.first.done, initial=n)


def refill(setup: SamplerSetup, queue: Queue, slots: Slots) -> Slots:
  """Returns the slots after the first free one took the next sample."""
  slot, sample, first = jnp.argmin(slots.active), slots.waiting, queue.first
  prompt = sample // queue.group
  cache = [
    kv_cache.copy_prompt(layer, kv, prompt, slot)
    for layer, kv in zip(slots.cache, queue.prompt_cache)
  ]
  if queue.begun is not None:
    rings = begun.ring(queue.begun, setup.blocks, sample, slots.step)
    cache = [kv_cache.copy_ring(layer, ring, slot) for layer, ring in zip(cache, rings)]
  return slots._replace(
    waiting=next_in_queue(queue, sample),
    sample=slots.sample.at[slot].set(sample),
    age=slots.age.at[slot].set(queue.begun_lengths[sample] + 1),
    active=slots.active.at[slot].set(~first.done[sample]),
    token=slots.token.at[slot].set(first.token[sample]),
    matched=jax.tree.map(lambda x, of: x.at[slot].set(of[sample]), slots.matched, first.matched),
    cache=cache,
  )


def decode_step(
  setup: SamplerSetup, params: Params, queue: Queue, block: int, slots: Slots
) -> Slots:
  """Returns the slots after one more token of each active one, in a column of that block."""
  n = slots.lengths.shape[0]
  hidden_SxD, cache = decode_layers(setup, params, queue, block, slots)
  logits_SxV = next_token.head(setup.decoder, params, setup.decoder.norm(params, hidden_SxD))
  token, logprob, truncated = next_token.sample_tokens(
    setup, logits_SxV, queue.noise.at(slots.sample, slots.age)
  )
  sample = jnp.where(slots.active, slots.sample, n)  # results of free slots are dropped
  age = slots.age + slots.active
  stopped = next_token.stops(setup, queue.forced_lengths, token, slots.sample, age)
  matched, stopped = next_token.follow_stop_texts(queue.stop_table, slots.matched, token, stopped)
  return slots._replace(
    step=slots.step + 1,
    age=age,
    active=slots.active & ~stopped & (age < queue.limits(setup.length, slots.sample)),
    token=token,
    matched=matched,
    busy=slots.busy + slots.active.sum(),
    cache=cache,
    tokens=slots.tokens.at[sample, slots.age].set(token, mode="drop"),
    sampler_logprobs=slots.sampler_logprobs.at[sample, slots.age].set(logprob, mode="drop"),
    truncated_logprobs=slots.truncated_logprobs.at[sample, slots.age].set(truncated, mode="drop"),
    lengths=slots.lengths.at[sample].set(age, mode="drop"),
    stopped=slots.stopped.at[sample].set(stopped, mode="drop"),
  )


def decode_layers(
  setup: SamplerSetup, params: Params, queue: Queue, block: int, slots: Slots
) -> tuple[Array, list[LayerCache]]:
  """Returns the hidden state `[S, D]` after the last token of each slot, and the updated caches."""
  decoder, length = setup.decoder, setup.length
  column = slots.step % length - setup.blocks[block][0]  # in the block
  prompt_lengths = queue.prompt_lengths[slots.sample // queue.group]
  steps_since_write = (slots.step - jnp.arange(length)) % length  # of each column
  # Without refills the steps go once around the ring, and the blocks after this one are empty.
  once_around = slots.age.shape[0] == slots.lengths.shape[0] and queue.begun is None
  blocks_to_read = setup.blocks[: block + 1] if once_around else setup.blocks
  width = queue.prompt_cache[0].keys.x.shape[-1]
  masks = {
    spec: kv_cache.visible(
      spec, prompt_lengths, slots.age, width, steps_since_write, blocks_to_read
    )
    for spec in dict.fromkeys(decoder.config.attention)
  }
  x_SxD, caches = decoder.embed(params, slots.token), []
  for i, (layer, cache) in enumerate(zip(params["layers"], slots.cache)):
    spec = decoder.config.layer_attention(i)
    attend = functools.partial(kv_cache.attend_slots, spec, cache, block, column, masks[spec])
    attend_at = decoder.at_positions(spec, prompt_lengths + slots.age - 1, attend)
    x_SxD, cache = decoder.block(layer, x_SxD, attend_at)
    caches.append(cache)
  return x_SxD, caches
