"""Rollouts in one compiled program: each prompt is prefilled once, then one loop decodes all slots.

A slot decodes one completion. With a slot for every sample, those of a prompt read its keys and values where they
are. With fewer, a slot whose completion ends takes the next waiting sample of any prompt, whose keys and values are
copied into it.

    sampler.py      what a rollout is given and returns, the prefill, and the shards of a mesh
    decode_loop.py  the slots, and the loop that refills them and decodes
    slot_cache.py   the keys and values that slots attend to, and their attention

The noise of a token is a function of (key, prompt, sample, position) alone, one uniform number: the slot that happens
to decode a sample, the number of slots and the mesh do not change what is sampled.

Shape letters: P prompts and G samples of each, of one shard or of all; N = P * G, L completion tokens, D width.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from grpo_jax import decode_loop, slot_cache
from grpo_jax.decode_loop import FirstTokens, Noise, Queue, SamplerSetup
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.types import STOPPED, TRUNCATED, Array, Prompts, Rollouts


class Request(NamedTuple):
  """What one rollout is to sample; inside the program, one shard of it."""

  prompts: Prompts  # [P, Lp]
  prompt_ids: Array  # [P] int32, place of each prompt in the whole batch
  sample_ids: Array  # [G] int32, place of each sample in the whole group
  key: Array  # of this rollout
  forced_lengths: Array | None  # [P, G] int32, where completions end in place of stop tokens; None: at stop tokens


def decode_params(decoder: Decoder, params: Params, dtype: str) -> Params:
  """Returns the policy as it decodes: cast, gathered over fsdp, one subtree a layer. Made once per rollout."""
  axes = decoder.axes()

  def gathered(x: Array, names: tuple) -> Array:
    return decoder.layout.constrain(x, *(None if name == "embed" else name for name in names))

  cast = jax.tree.map(lambda x: x.astype(dtype), {k: v for k, v in params.items() if k != "layers"})
  cast = {k: jax.tree.map(gathered, v, axes[k]) for k, v in cast.items()}
  of_layer = jax.tree.map(lambda x, names: names[1:], params["layers"], axes["layers"])
  layers = []
  for i in range(decoder.config.layers):
    layer = jax.tree.map(functools.partial(_layer, i, dtype), params["layers"])
    layers.append(jax.tree.map(gathered, layer, of_layer))
  return cast | {"layers": layers}


def _layer(i: int, dtype: str, stacked: Array) -> Array:
  """Returns the parameters of layer i, out of `[layers, ...]`."""
  return stacked[i].astype(dtype)


def prefill(setup: SamplerSetup, params: Params, request: Request, prompt_size: int | None) -> Queue:
  """Returns the queue of all samples: the prompts' keys and values, and the first token of every sample.

  The first token comes from the last hidden state of the prompt; no slot is needed for it.
  """
  prompts, group = request.prompts, request.sample_ids.shape[0]
  noise = Noise.of(request.key, request.prompt_ids, request.sample_ids)
  forced = request.forced_lengths if request.forced_lengths is None else request.forced_lengths.reshape(-1)
  hidden_PxD, kv = setup.decoder.prefill(params, prompts, prompt_size)
  prompt_cache = slot_cache.store_prompts(kv, setup.cache_dtype)

  logits_NxV = jnp.repeat(decode_loop.head(setup.decoder, params, hidden_PxD), group, axis=0)
  sample = jnp.arange(logits_NxV.shape[0])
  token, logprob, truncated = decode_loop.sample_tokens(setup, logits_NxV, noise.at(sample, jnp.zeros_like(sample)))
  real = jnp.repeat(prompts.lengths > 0, group)
  stopped = decode_loop.stops(setup, forced, token, sample, jnp.ones_like(sample))
  done = stopped | (setup.length == 1) | ~real
  first = FirstTokens(*(jnp.where(real, x, 0) for x in (token, logprob, truncated)), stopped & real, done)
  return Queue(real, prompts.lengths, forced, noise, prompt_cache, first)


def roll_out(
  setup: SamplerSetup, prompt_size: int | None, params: Params, request: Request
) -> tuple[dict[str, Array], dict[str, Array]]:
  """Returns the completions of one shard of prompts and samples, whose loop waits for no other shard.

  Returns:
    The fields of `Rollouts` that are sampled, `[P, G, ...]`; and counts `[1]` of slot-steps that decoded a token, of
    all slot-steps, and of steps.
  """
  queue = prefill(setup, params, request, prompt_size)
  slots = decode_loop.decode_until_done(setup, params, queue, decode_loop.start(setup, queue))
  completions = {
    "tokens": slots.tokens,
    "lengths": slots.lengths,
    "ended": jnp.where(slots.stopped, STOPPED, TRUNCATED),
    "sampler_logprobs": slots.sampler_logprobs,
    "truncated_logprobs": slots.truncated_logprobs,
  }
  counts = {"busy": slots.busy, "slot_steps": slots.step * slots.age.shape[0], "steps": slots.step}
  of_prompts = (queue.prompt_lengths.shape[0], queue.group)
  completions = {name: x.reshape(*of_prompts, *x.shape[1:]) for name, x in completions.items()}
  return completions, {name: x[None] for name, x in counts.items()}


def on_mesh(setup: SamplerSetup, run: Callable) -> Callable:
  """Returns `run(params, request)` (see `roll_out`) as a function of the whole batch, which runs in every shard."""
  mesh = setup.decoder.layout.mesh
  if mesh.size == 1:
    return run
  of_prompt, of_sample = PartitionSpec(setup.prompt_axes), PartitionSpec(setup.sample_axes)
  of_both = PartitionSpec(setup.prompt_axes, setup.sample_axes)
  of_shard = PartitionSpec(setup.prompt_axes + setup.sample_axes)
  return jax.shard_map(
    run,
    mesh=mesh,
    in_specs=(PartitionSpec(), Request(of_prompt, of_prompt, of_sample, PartitionSpec(), of_both)),
    out_specs=(of_both, of_shard),
    axis_names=set(setup.prompt_axes + setup.sample_axes),
    check_vma=False,
  )


def make_setup(decoder: Decoder, cfg: Any, stop_tokens: tuple[int, ...]) -> SamplerSetup:
  """Returns what all rollouts of a sampler share; arguments and errors: see `make_sampler`."""
  layout = decoder.layout
  prompt_axes, sample_axes = (dict(layout.rules).get(name, ()) for name in ("prompt", "sample"))
  # Inside the shard_map over them, these mesh axes are no longer there to be named.
  taken = prompt_axes + sample_axes
  rules = tuple((name, tuple(axis for axis in axes if axis not in taken)) for name, axes in layout.rules)
  inside = dataclasses.replace(layout, rules=rules)
  return SamplerSetup(
    decoder=dataclasses.replace(decoder, layout=inside, dtype=cfg.dtype, layers="unroll", remat="none"),
    prompt_axes=prompt_axes,
    sample_axes=sample_axes,
    group=cfg.group,
    length=cfg.max_length,
    slots=max(1, cfg.slots // (layout.size("prompt") * layout.size("sample"))) if cfg.slots else 0,
    cache_dtype=cfg.cache_dtype,
    blocks=slot_cache.ring_blocks(cfg.max_length, decoder.config.layers),
    temperature=cfg.temperature,
    top_k=cfg.top_k,
    top_p=cfg.top_p,
    min_p=cfg.min_p,
    stop_tokens=tuple(stop_tokens),
  )


def make_sampler(decoder: Decoder, cfg: Any, stop_tokens: tuple[int, ...]) -> Callable:
  """Returns the jitted sampler.

  Args:
    decoder: the model; decodes in cfg.dtype, whatever its own.
    cfg: the `sampler` section: group, max_length, slots, temperature, top_k, top_p, min_p, dtype, cache_dtype.
    stop_tokens: ids that end a completion.

  Returns:
    `sample(params, prompts, key, ends=None, prompt_size=None) -> (Rollouts, statistics)`: parameters as the learner
    holds them, prompts `[P, Lp]`, a key of this rollout; ends `[P, G]` int32 forces lengths in place of stop tokens
    (benchmarks); prompt_size, static: the prefill computes the prompts of a shard as a list of that many tokens, at
    least as many as there are (None: as a rectangle `[P, Lp]`).
    Statistics: `slot_use`, the share of slot-steps that decoded a token, and `decode_steps`.
  """
  setup = make_setup(decoder, cfg, stop_tokens)

  def sample(
    params: Params, prompts: Prompts, key: Array, ends: Array | None = None, prompt_size: int | None = None
  ) -> tuple[Rollouts, dict[str, Array]]:
    params = decode_params(setup.decoder, params, cfg.dtype)
    request = Request(prompts, jnp.arange(prompts.tokens.shape[0]), jnp.arange(setup.group), key, ends)
    run = on_mesh(setup, functools.partial(roll_out, setup, prompt_size))
    completions, counts = run(params, request)
    use = counts["busy"].sum() / jnp.maximum(counts["slot_steps"].sum(), 1)
    return Rollouts(prompts, **completions), {"slot_use": use, "decode_steps": counts["steps"].max()}

  return jax.jit(sample, static_argnames="prompt_size")
