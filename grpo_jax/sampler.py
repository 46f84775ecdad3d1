"""Rollouts in one compiled program: prefill each prompt once, then one loop that decodes all slots.

A slot decodes one completion. With a slot for every sample, those of a prompt read its keys and values where they
are. With fewer, a slot whose completion ends takes the next waiting sample of any prompt, whose keys and values are
copied into it. All slots write one common column of a ring cache, `step mod L`, so that the write is one in-place
slice; a mask keeps each slot to the columns that it wrote itself.

The noise of a token is a function of (key, prompt, sample, position) alone, one uniform number: the slot that happens
to decode a sample, the number of slots and the mesh do not change what is sampled.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from grpo_jax.errors import SettingError
from grpo_jax.models.attention import MASKED
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.models.layers import linear
from grpo_jax.ops import decoding
from grpo_jax.types import STOPPED, TRUNCATED, Array, Prompts, Rollouts

CACHE_DTYPES = ("float32", "bfloat16", "int8")
MOST_BLOCKS = 4  # of a ring
MOST_LAYERS = 64  # compiled: the loop is, once for each block
LEAST_COLUMNS = 32  # of a block


class Stored(NamedTuple):
  """Keys or values as the cache holds them."""

  x: Array
  scale: Array | None  # int8: float32, what 1 stands for; one for each vector of head_dim numbers


class LayerCache(NamedTuple):
  """What the slots attend to in one layer; S slots, K key/value heads, d head_dim; prompts of C slots in a row each.

  The ring of L columns lies in blocks: those that are not written yet need not be read, and the others are read side by
  side.
  """

  prompt: tuple[Stored, Stored]  # keys [S / C, K, d, Lp], transposed: the fastest to read for few queries; values
  # [S / C, K, Lp, d]
  ring: list[tuple[Stored, Stored]]  # keys [S, K, d, B], values [S, K, B, d], where all B add up to L


def store(x: Array, dtype: str, axis: int) -> Stored:
  """x in a cache's dtype; `axis` is that of a vector."""
  if dtype != "int8":
    return Stored(x.astype(dtype), None)
  scale = jnp.max(jnp.abs(x.astype(jnp.float32)), axis, keepdims=True) / 127
  return Stored(jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale)


def write(buffer: Stored, new: Stored, at: tuple) -> Stored:
  """`buffer` with `new` in it, from the indices `at` on."""
  return jax.tree.map(lambda b, n: jax.lax.dynamic_update_slice(b, n, at), buffer, new)


class Slots(NamedTuple):
  """The state of the decoding loop; N = P * G samples wait in a queue."""

  step: Array  # [] int32
  waiting: Array  # [] int32, the next sample of the queue
  sample: Array  # [S] int32, the sample that the slot decodes
  age: Array  # [S] int32, tokens of it that are sampled
  active: Array  # [S] bool
  token: Array  # [S] int32, the last one sampled
  busy: Array  # [] int32, slot-steps that decoded a token
  cache: list[LayerCache]
  tokens: Array  # [N, L] int32
  logprobs: Array  # [N, L] float32
  truncated: Array  # [N, L] float32
  lengths: Array  # [N] int32
  stopped: Array  # [N] bool


class Noise(NamedTuple):
  """One uniform number for each token of each sample."""

  keys: Array  # [N] keys

  @classmethod
  def of(cls, key: Array, prompts: Array, group: Array) -> "Noise":
    """Keys of (prompt, sample) pairs, prompt-major: prompts `[P]`, group `[G]` global indices."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return cls(jax.vmap(fold, (0, None))(fold(key, prompts), group).reshape(-1))

  def at(self, sample: Array, position: Array) -> Array:
    """Uniform numbers `[S]` for token `position` of `sample`."""
    one = lambda k, t: jax.random.uniform(jax.random.fold_in(k, t))
    return jax.vmap(one)(self.keys[sample], position)


def decode_params(decoder: Decoder, params: Params, dtype: str) -> Params:
  """The policy as it decodes: cast, gathered over fsdp, one subtree a layer. Made once per rollout."""
  cast = jax.tree.map(lambda x: x.astype(dtype), {k: v for k, v in params.items() if k != "layers"})
  axes = decoder.axes()
  gathered = lambda x, names: decoder.layout.constrain(x, *(None if n == "embed" else n for n in names))
  cast = {k: jax.tree.map(gathered, v, axes[k], is_leaf=lambda x: hasattr(x, "shape")) for k, v in cast.items()}
  layers = []
  for i in range(decoder.config.layers):
    layer = jax.tree.map(lambda x: x[i].astype(dtype), params["layers"])
    keep = lambda x, names: gathered(x, names[1:])
    layers.append(jax.tree.map(keep, layer, axes["layers"], is_leaf=lambda x: hasattr(x, "shape")))
  return cast | {"layers": layers}


def ring_blocks(length: int, layers: int) -> list[tuple[int, int]]:
  """(first column, past the last one) of each block of the ring."""
  n = max(1, min(MOST_BLOCKS, MOST_LAYERS // layers, length // LEAST_COLUMNS))
  edges = [length * i // n for i in range(n + 1)]
  return list(zip(edges, edges[1:]))


def attend_slots(
  cache: LayerCache, q: Array, k: Array, v: Array, block: int, column: Array, masks: Sequence[Array]
) -> tuple[Array, LayerCache]:
  """One token of each slot attends to its prompt and to its own past, itself included.

  Args:
    q: `[S, H, d]`; k, v: `[S, K, d]`.
    block, column: where the ring is written, for all slots: which block, and where in it.
    masks: what a slot may see: of the prompt `[S / C, Lp]`, of each block of the ring that is read `[S, B]`.

  Returns:
    `[S, H, d]` and the cache with k and v in it.
  """
  s, kv, d = k.shape
  keys, values = cache.ring[block]
  keys = write(keys, store(k[..., None], keys.x.dtype.name, 2), (0, 0, 0, column))
  values = write(values, store(v[:, :, None], values.x.dtype.name, 3), (0, 0, column, 0))
  cache = cache._replace(ring=[(keys, values) if i == block else kept for i, kept in enumerate(cache.ring)])
  q = (q * (d**-0.5)).reshape(s, kv, -1, d)
  prompts = cache.prompt[0].x.shape[0]

  def by_prompt(x: Array) -> Array:
    """`[S, K, M, ...]` -> `[S / C, K, C * M, ...]`: the slots of a prompt share one product."""
    x = x.reshape(prompts, s // prompts, *x.shape[1:])
    return jnp.moveaxis(x, 1, 2).reshape(prompts, kv, -1, x.shape[-1])

  def by_slot(x: Array) -> Array:
    return jnp.moveaxis(x.reshape(prompts, kv, s // prompts, -1, x.shape[-1]), 2, 1).reshape(s, kv, -1, x.shape[-1])

  def score(q: Array, k: Stored) -> Array:
    z = jnp.einsum("skmd,skdl->skml", q, k.x.astype(q.dtype), preferred_element_type=jnp.float32)
    return z if k.scale is None else z * k.scale

  def mix(p: Array, v: Stored) -> Array:
    p = p if v.scale is None else p * jnp.moveaxis(v.scale, 2, 3)
    return jnp.einsum("skml,skld->skmd", p.astype(q.dtype), v.x.astype(q.dtype))

  visible = lambda z, mask: jnp.where(mask[:, None, None], z, MASKED)
  z = [by_slot(visible(score(by_prompt(q), cache.prompt[0]), masks[0]))]
  z += [visible(score(q, keys), mask) for (keys, _), mask in zip(cache.ring, masks[1:])]
  top = functools.reduce(jnp.maximum, [x.max(-1, keepdims=True) for x in z])
  p = [jnp.exp(x - top) for x in z]
  out = by_slot(mix(by_prompt(p[0]), cache.prompt[1]))
  out = sum((mix(x, values) for x, (_, values) in zip(p[1:], cache.ring)), out)
  out = out / sum(x.sum(-1) for x in p)[..., None].astype(out.dtype)
  return out.reshape(s, -1, d), cache


def make_sampler(decoder: Decoder, cfg: Any, stop_tokens: tuple[int, ...]) -> Callable:
  """The jitted sampler.

  Args:
    decoder: the model; decodes in cfg.dtype, whatever its own.
    cfg: the `sampler` section: group, max_length, slots, temperature, top_k, top_p, min_p, dtype, cache_dtype.
    stop_tokens: ids that end a completion.

  Returns:
    `sample(params, prompts, key, ends=None, prompt_size=None) -> (Rollouts, statistics)`: parameters as the learner
    holds them, prompts `[P, Lp]`, a key of this rollout; ends `[P, G]` int32 forces lengths in place of stop tokens
    (benchmarks); prompt_size: at least as many as a shard's prompts have tokens (`plan.prompt_list_size`), static.
    Statistics: `slot_use`, the share of slot-steps that decoded a token, and `decode_steps`.
  """
  if cfg.cache_dtype not in CACHE_DTYPES:
    raise SettingError(f"sampler.cache_dtype={cfg.cache_dtype}: use one of {', '.join(CACHE_DTYPES)}")
  decoder = dataclasses.replace(decoder, dtype=cfg.dtype, layers="unroll", remat="none")
  layout, c = decoder.layout, decoder.config
  rows, columns = (dict(layout.rules).get(name, ()) for name in ("prompt", "sample"))
  # Inside the shard_map over them, these mesh axes are no longer there to be named.
  left = tuple((name, tuple(a for a in axes if a not in rows + columns)) for name, axes in layout.rules)
  decoder = dataclasses.replace(decoder, layout=dataclasses.replace(layout, rules=left))
  group, length = cfg.group, cfg.max_length
  stop = jnp.asarray(stop_tokens or (-1,), jnp.int32)
  how = {"temperature": cfg.temperature, "top_k": cfg.top_k, "top_p": cfg.top_p, "min_p": cfg.min_p}
  decoding.check(**how)

  def head(params: Params, hidden: Array) -> Array:
    """Logits `[S, V]` float32, gathered over the tensor axis. Sampling over a sharded vocabulary would permute between
    chips inside a loop that each shard of prompts leaves when it is done, and a permutation waits for all chips."""
    return decoder.layout.constrain(linear(decoder.unembed(params), hidden, jnp.float32), None, None)

  def local(
    prompt_size: int | None,
    params: Params,
    prompts: Prompts,
    prompt_ids: Array,
    sample_ids: Array,
    key: Array,
    ends: Any,
  ) -> tuple:
    """Everything that one shard of prompts and samples needs; its loop waits for no other shard."""
    n_prompts, lp = prompts.tokens.shape
    g = sample_ids.shape[0]
    n = n_prompts * g
    shards = layout.size("prompt") * layout.size("sample")
    s = min(n, max(1, cfg.slots // shards)) if cfg.slots else n
    noise = Noise.of(key, prompt_ids, sample_ids)

    hidden, kv = decoder.prefill(params, prompts, prompt_size)
    keep = lambda x, axes, vector: store(jnp.transpose(x, axes), cfg.cache_dtype, vector)
    shared = [(keep(k, (0, 2, 3, 1), 2), keep(v, (0, 2, 1, 3), 3)) for k, v in zip(kv.keys, kv.values)]
    # The first token of every sample comes from its prompt's last state; no slot is needed for it.
    everyone = jnp.arange(n)
    logits = jnp.repeat(head(params, hidden), g, axis=0)
    first, logprob, truncated = decoding.sample(logits, noise.at(everyone, jnp.zeros_like(everyone)), **how)
    real = jnp.repeat(prompts.lengths > 0, g)
    stops = lambda token, sample, age: jnp.isin(token, stop) if ends is None else age == ends.reshape(-1)[sample]
    stopped = stops(first, everyone, jnp.ones_like(everyone))
    done = stopped | (length == 1) | ~real
    column0 = lambda x: jnp.zeros((n, length), x.dtype).at[:, 0].set(x)
    if s == n:  # a slot for each sample: all start at once, on their prompts as they are
      start = {"waiting": jnp.int32(n), "sample": everyone, "active": ~done, "token": first}
      prompt_cache = shared
    else:
      start = {"waiting": jnp.int32(0), "sample": jnp.zeros(s, jnp.int32), "active": jnp.zeros(s, bool)}
      start |= {"token": jnp.zeros(s, jnp.int32)}
      prompt_cache = jax.tree.map(lambda x: jnp.zeros((s, *x.shape[1:]), x.dtype), shared)
    blocks = ring_blocks(length, c.layers)
    empty = lambda shape, vector: store(jnp.zeros((s, c.kv_heads, *shape)), cfg.cache_dtype, vector)
    ring = lambda: [(empty((c.head_dim, b - a), 2), empty((b - a, c.head_dim), 3)) for a, b in blocks]
    slots = Slots(
      step=jnp.int32(0),
      age=jnp.ones(s, jnp.int32),
      busy=jnp.int32(0),
      cache=[LayerCache(layer, ring()) for layer in prompt_cache],
      tokens=column0(first),
      logprobs=column0(logprob),
      truncated=column0(truncated),
      lengths=jnp.where(real, 1, 0).astype(jnp.int32),
      stopped=stopped,
      **start,
    )

    def refill(slots: Slots) -> Slots:
      """The first free slot takes the next sample of the queue (and stays free if that one ended at once)."""
      slot, sample = jnp.argmin(slots.active), slots.waiting
      prompt = sample // g
      cache = []
      for own, layer in zip(slots.cache, shared):
        put = lambda buffer, x: write(buffer, jax.tree.map(lambda x: x[prompt][None], x), (slot, 0, 0, 0))
        cache.append(own._replace(prompt=tuple(map(put, own.prompt, layer))))
      return slots._replace(
        waiting=slots.waiting + 1,
        sample=slots.sample.at[slot].set(sample),
        age=slots.age.at[slot].set(1),
        active=slots.active.at[slot].set(~done[sample]),
        token=slots.token.at[slot].set(first[sample]),
        cache=cache,
      )

    def decode(block: int, slots: Slots) -> Slots:
      """One token for every slot; the ring is written in that block."""
      column, lengths = slots.step % length - blocks[block][0], prompts.lengths[slots.sample // g]
      behind = (slots.step - jnp.arange(length)) % length  # steps since each column was written
      of_prompts = lengths[:: s // len(slots.cache[0].prompt[0].x)]
      read = blocks[: block + 1] if s == n else blocks  # all start at once: what lies ahead is empty
      masks = [jnp.arange(lp) < of_prompts[:, None], *(behind[a:b] < slots.age[:, None] for a, b in read)]
      x, cache = decoder.embed(params, slots.token), []
      for layer, own in zip(params["layers"], slots.cache):
        attend = lambda q, k, v, own=own: attend_slots(own, q, k, v, block, column, masks)
        x, own = decoder.block(layer, x, lengths + slots.age - 1, attend)
        cache.append(own)
      logits = head(params, decoder.norm(params, x))
      token, logprob, truncated = decoding.sample(logits, noise.at(slots.sample, slots.age), **how)
      at = (jnp.where(slots.active, slots.sample, n), slots.age)
      age = slots.age + slots.active
      stopped = stops(token, slots.sample, age)
      return slots._replace(
        step=slots.step + 1,
        age=age,
        active=slots.active & ~stopped & (age < length),
        token=token,
        busy=slots.busy + slots.active.sum(),
        cache=cache,
        tokens=slots.tokens.at[at].set(token, mode="drop"),
        logprobs=slots.logprobs.at[at].set(logprob, mode="drop"),
        truncated=slots.truncated.at[at].set(truncated, mode="drop"),
        lengths=slots.lengths.at[at[0]].set(age, mode="drop"),
        stopped=slots.stopped.at[at[0]].set(stopped, mode="drop"),
      )

    can_refill = lambda x: (x.waiting < n) & ~x.active.all()
    can_decode = lambda x: x.active.any() & ~can_refill(x)

    def turn(slots: Slots) -> Slots:
      """Refills, and decodes until that can be done again: at most once around the ring."""
      slots = jax.lax.while_loop(can_refill, refill, slots)
      for i, (begin, end) in enumerate(blocks):
        here = lambda x, begin=begin, end=end: can_decode(x) & (x.step % length >= begin) & (x.step % length < end)
        slots = jax.lax.while_loop(here, functools.partial(decode, i), slots)
      return slots

    slots = jax.lax.while_loop(lambda x: x.active.any() | (x.waiting < n), turn, slots)
    groups = lambda x: x.reshape(n_prompts, g, *x.shape[1:])
    return (
      groups(slots.tokens),
      groups(slots.lengths),
      groups(jnp.where(slots.stopped, STOPPED, TRUNCATED)),
      groups(slots.logprobs),
      groups(slots.truncated),
      jnp.stack([slots.busy, slots.step * s])[None],
      slots.step[None],
    )

  def sample(
    params: Params, prompts: Prompts, key: Array, ends: Array | None = None, prompt_size: int | None = None
  ) -> tuple[Rollouts, dict[str, Array]]:
    params = decode_params(decoder, params, cfg.dtype)
    prompt_ids, sample_ids = jnp.arange(prompts.tokens.shape[0]), jnp.arange(group)
    run = functools.partial(local, prompt_size)
    if layout.mesh.size > 1:
      both = PartitionSpec(rows, columns)
      run = jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(
          PartitionSpec(),
          PartitionSpec(rows),
          PartitionSpec(rows),
          PartitionSpec(columns),
          PartitionSpec(),
          both,
        ),
        out_specs=(both,) * 5 + (PartitionSpec(rows + columns),) * 2,
        axis_names=set(rows + columns),
        check_vma=False,
      )
    tokens, lengths, ended, logprobs, truncated, slot_steps, steps = run(
      params, prompts, prompt_ids, sample_ids, key, ends
    )
    busy, all_ = slot_steps.sum(0)
    statistics = {"slot_use": busy / jnp.maximum(all_, 1), "decode_steps": steps.max()}
    return Rollouts(prompts, tokens, lengths, ended, logprobs, truncated), statistics

  return jax.jit(sample, static_argnames="prompt_size")
