"""Decodes in a loop: each slot samples a token a step, and takes the next sample when it is free.

    start              the slots before the loop
    decode_until_done  refills free slots and decodes steps until no sample is left

Everything here is of one shard of prompts and samples. The loop's state is `Slots`; `SamplerSetup`
and `Queue` hold what does not change in it. kv_cache.py has a picture of the ring of columns that
all slots write.

Shape letters: P prompts, G samples of each, N = P * G, S slots, L completion tokens, Lp prompt
tokens.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.models.layers import linear
from grpo_jax.ops import decoding
from grpo_jax.sampling import kv_cache
from grpo_jax.sampling.kv_cache import LayerCache, StoredKV
from grpo_jax.types import Array


@dataclasses.dataclass(frozen=True)
class SamplerSetup:
  """Holds the model and the settings that all rollouts of one sampler share."""

  decoder: Decoder  # in sampler.dtype, its layers unrolled, for one shard of prompts and samples
  prompt_axes: tuple[str, ...]  # mesh axes over which prompts are sharded
  sample_axes: tuple[str, ...]  # mesh axes over which the samples of a prompt are sharded
  group: int  # samples of a prompt, over all shards
  length: int  # largest number of tokens of a completion
  slots: int  # largest number of slots of a shard; 0: one for each sample
  cache_dtype: str
  blocks: tuple[tuple[int, int], ...]  # (first column, end) of each block of the cache's ring
  temperature: float
  truncation: decoding.Truncation
  stop_tokens: tuple[int, ...]


class Noise(NamedTuple):
  """One uniform number for each token of each sample."""

  keys: Array  # [N] keys

  @classmethod
  def for_samples(cls, key: Array, prompts: Array, group: Array) -> "Noise":
    """Returns the noise of all pairs of global indices of prompts `[P]` and samples `[G]`."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return cls(jax.vmap(fold, (0, None))(fold(key, prompts), group).reshape(-1))

  def at(self, sample: Array, position: Array) -> Array:
    """Returns uniform numbers `[S]` for token `position` (`[S]`) of `sample` (`[S]`)."""
    draw = jax.vmap(lambda key, t: jax.random.uniform(jax.random.fold_in(key, t)))
    return draw(self.keys[sample], position)


class FirstTokens(NamedTuple):
  """First token of every sample; zeros, except for `done`, if its prompt fills the batch."""

  token: Array  # [N] int32
  logprob: Array  # [N] float32
  truncated_logprob: Array  # [N] float32, after top-k, top-p and min-p
  matched: Array | None  # [N] state of the stop texts after it; None: there are none
  stopped: Array  # [N] bool, whether it ends its completion
  done: Array  # [N] bool, whether nothing is left to decode


class Queue(NamedTuple):
  """Samples of a shard in the order in which slots take them, prompt by prompt."""

  real: Array  # [N] bool; the others belong to prompts of length 0, which only fill the batch
  prompt_lengths: Array  # [P] int32
  forced_lengths: Array | None  # [N] int32, lengths in place of stop tokens; None: stop tokens end
  stop_table: Array | None  # [states, V] uint16, see tokenizer/stop_texts.py; None: no stop texts
  noise: Noise
  prompt_cache: list[StoredKV]  # [P, ...] of each layer
  first: FirstTokens

  @property
  def group(self) -> int:
    """Samples of a prompt in this shard."""
    return self.real.shape[0] // self.prompt_lengths.shape[0]


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
  s = min(n, setup.slots) if setup.slots else n

  def column0(x: Array) -> Array:
    return jnp.zeros((n, setup.length), x.dtype).at[:, 0].set(x)

  if s == n:  # one slot for each sample: they read the prompts' cache without a copy
    waiting, sample, active, token = jnp.int32(n), jnp.arange(n), ~first.done, first.token
    matched = first.matched
    prompt_cache = queue.prompt_cache
  else:
    waiting, sample = jnp.int32(0), jnp.zeros(s, jnp.int32)
    active, token = jnp.zeros(s, bool), jnp.zeros(s, jnp.int32)
    matched = jax.tree.map(lambda x: jnp.zeros(s, x.dtype), first.matched)
    prompt_cache = jax.tree.map(lambda x: jnp.zeros((s, *x.shape[1:]), x.dtype), queue.prompt_cache)
  sizes = [end - begin for begin, end in setup.blocks]
  empty = functools.partial(
    kv_cache.empty, s, config.kv_heads, config.head_dim, dtype=setup.cache_dtype
  )
  return Slots(
    step=jnp.int32(0),
    waiting=waiting,
    sample=sample,
    age=jnp.ones(s, jnp.int32),
    active=active,
    token=token,
    matched=matched,
    busy=jnp.int32(0),
    cache=[LayerCache(kv, [empty(size) for size in sizes]) for kv in prompt_cache],
    tokens=column0(first.token),
    sampler_logprobs=column0(first.logprob),
    truncated_logprobs=column0(first.truncated_logprob),
    lengths=jnp.where(queue.real, 1, 0).astype(jnp.int32),
    stopped=first.stopped,
  )


# -- the loop


def decode_until_done(setup: SamplerSetup, params: Params, queue: Queue, slots: Slots) -> Slots:
  """Returns the slots after the last sample of the queue has ended."""
  step = functools.partial(refill_and_decode, setup, params, queue)
  return jax.lax.while_loop(unfinished, step, slots)


def refill_and_decode(setup: SamplerSetup, params: Params, queue: Queue, slots: Slots) -> Slots:
  """Returns the slots after refills and decoding, until a slot can be refilled again.

  It decodes for at most one turn around the ring of columns (see kv_cache.py).
  """
  slots = jax.lax.while_loop(can_refill, functools.partial(refill, queue), slots)
  for block, (begin, end) in enumerate(setup.blocks):
    in_block = functools.partial(can_decode, begin, end)
    decode = functools.partial(decode_step, setup, params, queue, block)
    slots = jax.lax.while_loop(in_block, decode, slots)
  return slots


def unfinished(slots: Slots) -> Array:
  """Returns whether a sample is active or waits, `[]` bool."""
  return slots.active.any() | (slots.waiting < slots.lengths.shape[0])


def can_refill(slots: Slots) -> Array:
  """Returns whether a sample waits and a slot is free, `[]` bool."""
  return (slots.waiting < slots.lengths.shape[0]) & ~slots.active.all()


def can_decode(begin: int, end: int, slots: Slots) -> Array:
  """Returns whether the next step decodes into a column in [begin, end) of the ring, `[]` bool."""
  column = slots.step % slots.tokens.shape[1]
  return slots.active.any() & ~can_refill(slots) & (column >= begin) & (column < end)


def refill(queue: Queue, slots: Slots) -> Slots:
  """Returns the slots after the first free one took the next sample, which may be done."""
  slot, sample, first = jnp.argmin(slots.active), slots.waiting, queue.first
  prompt = sample // queue.group
  return slots._replace(
    waiting=slots.waiting + 1,
    sample=slots.sample.at[slot].set(sample),
    age=slots.age.at[slot].set(1),
    active=slots.active.at[slot].set(~first.done[sample]),
    token=slots.token.at[slot].set(first.token[sample]),
    matched=jax.tree.map(lambda x, of: x.at[slot].set(of[sample]), slots.matched, first.matched),
    cache=[
      kv_cache.copy_prompt(layer, kv, prompt, slot)
      for layer, kv in zip(slots.cache, queue.prompt_cache)
    ],
  )


def decode_step(
  setup: SamplerSetup, params: Params, queue: Queue, block: int, slots: Slots
) -> Slots:
  """Returns the slots after one more token of each active one, in a column of that block."""
  n = slots.lengths.shape[0]
  hidden_SxD, cache = decode_layers(setup, params, queue, block, slots)
  logits_SxV = head(setup.decoder, params, setup.decoder.norm(params, hidden_SxD))
  token, logprob, truncated = sample_tokens(
    setup, logits_SxV, queue.noise.at(slots.sample, slots.age)
  )
  sample = jnp.where(slots.active, slots.sample, n)  # results of free slots are dropped
  age = slots.age + slots.active
  stopped = stops(setup, queue.forced_lengths, token, slots.sample, age)
  matched, stopped = follow_stop_texts(queue.stop_table, slots.matched, token, stopped)
  return slots._replace(
    step=slots.step + 1,
    age=age,
    active=slots.active & ~stopped & (age < setup.length),
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
  no_refills = slots.age.shape[0] == slots.lengths.shape[0]
  blocks_to_read = setup.blocks[: block + 1] if no_refills else setup.blocks
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
    x_SxD, cache = decoder.block(layer, x_SxD, prompt_lengths + slots.age - 1, spec, attend)
    caches.append(cache)
  return x_SxD, caches


# -- from hidden states to tokens


def head(decoder: Decoder, params: Params, hidden: Array) -> Array:
  """Returns logits `[n, V]` float32 of hidden states `[n, D]`, gathered over the tensor axis.

  Sampling over a sharded vocabulary would permute between chips. A permutation waits for all chips,
  but each shard of prompts leaves the loop when it is done.
  """
  logits = decoder.layout.constrain(
    linear(decoder.unembed(params), hidden, jnp.float32), None, None
  )
  return decoding.soft_cap(logits, decoder.config.logit_soft_cap)


def sample_tokens(
  setup: SamplerSetup, logits: Array, uniforms: Array
) -> tuple[Array, Array, Array]:
  """Returns tokens, log-probs and truncated log-probs `[n]` of logits `[n, V]`, uniforms `[n]`."""
  return decoding.sample(
    logits,
    uniforms,
    temperature=setup.temperature,
    **setup.truncation._asdict(),
  )


def stops(
  setup: SamplerSetup, forced_lengths: Array | None, token: Array, sample: Array, age: Array
) -> Array:
  """Returns whether a token ends its completion, bool.

  Args:
    setup: its stop tokens.
    forced_lengths: `[N]`, or None: stop tokens end completions.
    token: `[n]`.
    sample: `[n]`, the token's sample.
    age: `[n]`, number of tokens of that sample, this one included.
  """
  if forced_lengths is None:
    return jnp.isin(token, jnp.asarray(setup.stop_tokens or (-1,), jnp.int32))
  return age == forced_lengths[sample]


def follow_stop_texts(
  stop_table: Array | None, matched: Array | None, token: Array, stopped: Array
) -> tuple[Array | None, Array]:
  """Returns the states of the stop texts after a token, and whether it ends its completion.

  Args:
    stop_table: `[states, V]`; None: there are no stop texts.
    matched: `[n]`, the states before the token.
    token: `[n]`.
    stopped: `[n]` bool, whether it ends its completion by itself.
  """
  if stop_table is None or matched is None:
    return None, stopped
  matched = stop_table[matched, token]
  return matched, stopped | (matched == stop_table.shape[0])
