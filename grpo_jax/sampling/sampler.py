"""Samples rollouts: one program prepares the weights, another prefills prompts and decodes samples.

A slot decodes one completion. With a slot for every sample, those of a prompt read its keys and
values in place. With fewer, a slot whose completion ends takes the next waiting sample of any
prompt, whose keys and values are copied into it.

    sampler.py      inputs and outputs of a rollout, and the prefill
    meshes.py       what each shard of a mesh is given and returns
    stream.py       a rollout in parts, whose completions are read as they end
    decode_loop.py  the slots, and the loop that refills them and decodes
    next_token.py   from a hidden state to the next token
    kv_cache.py     the keys and values that slots attend to, and their attention
    begun.py        samples that have tokens before the first that is sampled

The noise of a token is one uniform number, a function of (key, prompt, sample, position) alone. So
the slot that happens to decode a sample, the number of slots and the mesh do not change what is
sampled.

Shape letters: P prompts and G samples of each, of one shard or of all; N = P * G, L completion
tokens, D width.
"""

import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from grpo_jax.aliases import Json
from grpo_jax.config import settings
from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import SettingError
from grpo_jax.models import int8, lora
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.ops import decoding
from grpo_jax.sampling import begun as begun_samples
from grpo_jax.sampling import decode_loop, kv_cache, meshes, next_token
from grpo_jax.sampling.begun import Begun, Carried
from grpo_jax.sampling.decode_loop import FirstTokens, Queue, Slots
from grpo_jax.sampling.meshes import Request
from grpo_jax.sampling.next_token import Noise, SamplerSetup
from grpo_jax.types import STOPPED, TRUNCATED, Array, Prompts, Rollouts


def decode_params(decoder: Decoder, dtype: str, weights_dtype: str, params: Params) -> Params:
  """Returns the policy as it decodes, made once per rollout.

  It has no adapters and one subtree for each layer, in `dtype` except for int8 matrices of layers.
  """
  layers = [
    jax.tree.map(operator.itemgetter(i), params["layers"]) for i in range(decoder.config.layers)
  ]
  layers = [lora.merge(decoder.lora, layer) for layer in layers]
  if weights_dtype == "int8":  # rounded from the learner's float32
    layers = [int8.round_layer(layer) for layer in layers]
  return int8.cast(params | {"layers": layers}, dtype)


def decode_shardings(decoder: Decoder, weights_dtype: str) -> Params:
  """Returns the shardings of `decode_params`: whole over prompts, samples and embed."""
  inside = decoder.layout.inside(decoder.layout.shard_axes)
  shardings = dataclasses.replace(decoder.base, layout=inside).shardings()
  layer = jax.tree.map(
    lambda s: NamedSharding(s.mesh, PartitionSpec(*s.spec[1:])), shardings["layers"]
  )
  if weights_dtype == "int8":
    layer = int8.layer_shardings(layer)
  return shardings | {"layers": [layer] * decoder.config.layers}


@functools.cache
def jitted_ready(
  decoder: Decoder, layout: Layout, dtype: str, weights_dtype: str
) -> jax.stages.Wrapped:
  """Returns `decode_params` jitted for the sampler's layout.

  It is cached, so that the samplers of a run (one to learn from, two of evaluations) compile it
  once.
  """
  shardings = decode_shardings(dataclasses.replace(decoder, layout=layout), weights_dtype)
  run = functools.partial(decode_params, decoder, dtype, weights_dtype)
  return jax.jit(run, out_shardings=shardings, compiler_options=layout.compiler_options)


def prefill(
  setup: SamplerSetup, params: Params, request: Request, prompt_size: int | None
) -> Queue:
  """Returns the queue of all samples, with the KV of prompts and the first token of each sample.

  The first token comes from the last hidden state of the prompt, or of a sample that has begun; no
  slot is needed for it.
  """
  prompts, group, begun_rows = request.prompts, request.sample_ids.shape[0], None
  noise = Noise.for_samples(request.key, request.prompt_ids, request.sample_ids)
  forced = None if request.forced_lengths is None else request.forced_lengths.reshape(-1)
  sample = jnp.arange(prompts.lengths.shape[0] * group)
  real, position = jnp.repeat(prompts.lengths > 0, group), jnp.zeros_like(sample)
  limits: Array | int = setup.length
  table = request.stop_table if forced is None else None
  matched = None if table is None else jnp.zeros(sample.shape, table.dtype)
  if request.begun is None:
    hidden_PxD, kv = setup.decoder.prefill(params, prompts, prompt_size)
    prompt_cache = kv_cache.store_prompts(kv, setup.cache_dtype)
    at_once = len(prompts.lengths) <= (setup.slots or len(sample))
    logits_PxV = next_token.head(setup.decoder, params, hidden_PxD) if at_once else None
  else:
    hidden_NxD, prompt_cache, begun_rows = begun_samples.prefill(
      setup.decoder, params, prompts, request.begun, setup.cache_dtype
    )
    real &= begun_rows.unfinished
    position, limits = begun_rows.lengths, begun_rows.limits
    matched = None if table is None else begun_rows.matched.astype(table.dtype)

  def logits_of(some: Array) -> Array:
    if request.begun is not None:
      hidden = jnp.take(hidden_NxD, some, axis=0)
    elif logits_PxV is None:
      hidden = jnp.take(hidden_PxD, some // group, axis=0)
    else:
      return jnp.take(logits_PxV, some // group, axis=0)
    return next_token.head(setup.decoder, params, hidden)

  token, logprob, truncated = next_token.sample_in_parts(setup, logits_of, noise, sample, position)
  stopped = next_token.stops(setup, forced, token, sample, position + 1)
  matched, stopped = next_token.follow_stop_texts(table, matched, token, stopped)
  done = stopped | (position + 1 >= limits) | ~real
  token, logprob, truncated = (jnp.where(real, x, 0) for x in (token, logprob, truncated))
  first = FirstTokens(token, logprob, truncated, matched, stopped & real, done)
  return Queue(
    real, prompts.lengths, forced, table, noise, prompt_cache, first, begun_rows, request.due
  )


def roll_out(
  setup: SamplerSetup, prompt_size: int | None, params: Params, request: Request
) -> tuple[dict[str, Array], dict[str, Array]]:
  """Returns the completions of one shard, whose loop waits for no other shard, and counts.

  Returns:
    The sampled fields of `Rollouts`, `[P, G, ...]`; and counts `[1]` of slot-steps that decoded a
    token, of all slot-steps, and of steps.
  """
  queue = prefill(setup, params, request, prompt_size)
  slots = decode_loop.decode_until_done(setup, params, queue, decode_loop.start(setup, queue))
  return completions(queue, slots)


def completions(queue: Queue, slots: Slots) -> tuple[dict[str, Array], dict[str, Array]]:
  """Returns the completions of one shard, and counts, see `roll_out`."""
  found = {
    "tokens": slots.tokens,
    "lengths": slots.lengths,
    "ended": jnp.where(slots.stopped, STOPPED, TRUNCATED),
    "sampler_logprobs": slots.sampler_logprobs,
    "truncated_logprobs": slots.truncated_logprobs,
  }
  counts = {"busy": slots.busy, "slot_steps": slots.step * slots.age.shape[0], "steps": slots.step}
  leading = (queue.prompt_lengths.shape[0], queue.group)
  found = {name: x.reshape(*leading, *x.shape[1:]) for name, x in found.items()}
  return found, {name: x[None] for name, x in counts.items()}


def decode_layout(layout: Layout, tensor: int) -> Layout:
  """Returns the layout that decodes: the learner's devices with another size of the tensor axis.

  A larger size takes from fsdp first, then from group; what a smaller one leaves goes to group.

  Args:
    layout: of the learner.
    tensor: `sampler.tensor`; 0: as in the learner.
  """
  sizes = dict(layout.mesh.shape)
  if tensor in (0, sizes["tensor"]):
    return layout
  devices = sizes["fsdp"] * sizes["group"] * sizes["tensor"]
  if devices % tensor or max(tensor, sizes["tensor"]) % min(tensor, sizes["tensor"]):
    raise SettingError(
      f"sampler.tensor={tensor}: use a multiple or a divisor of mesh.tensor={sizes['tensor']} that "
      f"divides the {devices} devices of fsdp, group and tensor"
    )
  from_fsdp = math.gcd(sizes["fsdp"], max(1, tensor // sizes["tensor"]))
  sizes |= {"fsdp": sizes["fsdp"] // from_fsdp, "tensor": tensor}
  sizes["group"] = devices // (sizes["fsdp"] * tensor)
  grid = layout.mesh.devices.reshape(tuple(sizes.values()))
  mesh = Mesh(grid, layout.mesh.axis_names, axis_types=layout.mesh.axis_types)
  return dataclasses.replace(layout, mesh=mesh)


def make_setup(
  decoder: Decoder, cfg: settings.Sampler, stop_tokens: tuple[int, ...]
) -> SamplerSetup:
  """Returns the setup of a sampler, see `make_sampler`."""
  layout = decode_layout(decoder.layout, cfg.tensor)
  prompt_axes, sample_axes = (dict(layout.rules).get(name, ()) for name in ("prompt", "sample"))
  inside = layout.inside(prompt_axes + sample_axes)
  return SamplerSetup(
    decoder=dataclasses.replace(
      decoder.base, layout=inside, dtype=cfg.dtype, layers="unroll", remat="none"
    ),
    prompt_axes=prompt_axes,
    sample_axes=sample_axes,
    group=cfg.group,
    carry=cfg.carry // layout.size("prompt"),
    length=cfg.max_length,
    slots=max(1, cfg.slots // (layout.size("prompt") * layout.size("sample"))) if cfg.slots else 0,
    cache_dtype=cfg.cache_dtype,
    blocks=kv_cache.ring_blocks(cfg.max_length, decoder.config.layers),
    temperature=cfg.temperature,
    truncation=decoding.Truncation(*(getattr(cfg, name) for name in decoding.Truncation._fields)),
    stop_tokens=tuple(stop_tokens),
  )


@dataclasses.dataclass(frozen=True)
class Sampler:
  """A policy's rollouts, in two compiled programs."""

  setup: SamplerSetup
  layout: Layout  # that decodes; prompts are placed by it
  ready: jax.stages.Wrapped  # jitted: the learner's params -> `decode_params`
  run: jax.stages.Wrapped  # jitted `sample` without its setup
  stop_table: Array | None = None  # [states, V], of the stop texts; None: there are none

  def __call__(
    self,
    params: Params,
    prompts: Prompts,
    key: Array,
    ends: ArrayLike | None = None,
    prompt_size: int | None = None,
    begun: Begun | None = None,
    carried: Carried | None = None,
  ) -> tuple[Rollouts, dict[str, Array]]:
    """Returns rollouts and statistics.

    Args:
      params: as the learner holds them.
      prompts: `[P, Lp]`.
      key: of this rollout.
      ends: `[P, G]` int32, forced lengths in place of stop tokens (benchmarks).
      prompt_size: static. The prefill computes the prompts of a shard as a list of this many
        tokens, no fewer than there are (None: as a rectangle `[P, Lp]`).
      begun: the samples' tokens so far, with a packing for `layout`; None: no sample has begun.
      carried: the prompts that are waited for; None: all.

    Returns:
      Rollouts `[P, G, ...]`, and `slot_use`, the share of slot-steps that decoded a token, and
      `decode_steps`. Samples that begun calls finished have length 0. The others have all of their
      tokens, and log-probs of those that were sampled now, 0 before. With `carried`, samples that
      are shorter than their limit may be TRUNCATED: these go on.
    """
    ready = self.ready(params)
    return self.run(
      ready, prompts, key, ends, self.stop_table, begun, carried, prompt_size=prompt_size
    )


def sample(
  setup: SamplerSetup,
  params: Params,
  prompts: Prompts,
  key: Array,
  ends: Array | None = None,
  stop_table: Array | None = None,
  begun: Begun | None = None,
  carried: Carried | None = None,
  prompt_size: int | None = None,
) -> tuple[Rollouts, dict[str, Array]]:
  """Returns rollouts and statistics as `Sampler` does, from the params of `decode_params`."""
  specs = meshes.specs(setup)
  run = meshes.on_mesh(
    setup,
    functools.partial(roll_out, setup, prompt_size),
    (specs.whole, specs.request),
    (specs.samples, specs.shard),
  )
  request = make_request(setup, prompts, key, ends, stop_table, begun, carried)
  return joined(prompts, *run(params, request))


def make_request(
  setup: SamplerSetup,
  prompts: Prompts,
  key: Array,
  ends: Array | None,
  stop_table: Array | None,
  begun: Begun | None,
  carried: Carried | None,
) -> Request:
  """Returns the request of a whole rollout, see `Sampler.__call__`."""
  numbers, due = jnp.arange(prompts.tokens.shape[0]), None
  if carried is not None:
    numbers, due = carried
  samples = jnp.arange(setup.group)
  return Request(prompts, numbers, samples, key, ends, stop_table, begun, due)


def joined(prompts: Prompts, found: Json, counts: Json) -> tuple[Rollouts, dict[str, Array]]:
  """Returns rollouts and statistics, from the completions and counts of all shards."""
  use = counts["busy"].sum() / jnp.maximum(counts["slot_steps"].sum(), 1)
  return Rollouts(prompts, **found), {"slot_use": use, "decode_steps": counts["steps"].max()}


@functools.lru_cache(maxsize=8)
def jitted_run(setup: SamplerSetup) -> jax.stages.Wrapped:
  """Returns `sample` of a setup, jitted.

  It is cached, so that models of one shape, evaluated one after the other, compile it once. Only a
  few are cached, because each keeps its programs.
  """
  return jax.jit(functools.partial(sample, setup), static_argnames="prompt_size")


def make_sampler(
  decoder: Decoder,
  cfg: settings.Sampler,
  stop_tokens: tuple[int, ...],
  stop_table: np.ndarray | None = None,
) -> Sampler:
  """Returns the sampler of a policy.

  Args:
    decoder: the model, on the learner's layout; it decodes in cfg.dtype, whatever its own.
    cfg: settings.
    stop_tokens: ids that end a completion.
    stop_table: of texts that do (`stop_texts.table`); None: there are none.
  """
  # The family matters only for exports, and is not known of every folder.
  decoder = dataclasses.replace(decoder, config=dataclasses.replace(decoder.config, family=""))
  setup, layout = make_setup(decoder, cfg, stop_tokens), decode_layout(decoder.layout, cfg.tensor)
  return Sampler(
    setup=setup,
    layout=layout,
    ready=jitted_ready(decoder, layout, cfg.dtype, cfg.weights_dtype),
    run=jitted_run(setup),
    stop_table=stop_table
    if stop_table is None
    else jax.device_put(stop_table, layout.replicated()),
  )
