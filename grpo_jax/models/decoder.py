"""One decoder for every family: its `shape.DecoderConfig` makes it Qwen, Llama or Gemma.

Only `Decoder` deals with NNX modules. Outside it there are plain parameter trees:

    {"embed": {"weight" [V, D]}, "layers": {... [N, out, in] ...}, "final_norm": {"scale" [D]},
     "unembed": {"weight" [V, D]}}

All layers are stacked on a leading axis N. "unembed" is absent when embeddings are tied, and in a
reward model (`DecoderConfig.scores`), which has "score" {"weight" [1, D]} instead. The decoder
returns hidden states and keys/values; ops/logprobs.py and sampling/sampler.py make logits of them.

Everything but attention treats each token by itself. So tokens go through the layers as one list
`[N, D]`, and only attention splits it into prompts and rows of completions: `lists.join` makes the
list and `lists.split` undoes it.

On a mesh the learner runs it in a `jax.shard_map` (learning/forward.py): each shard has its prompts
and samples, and a shard of every parameter. Parameters that a pass uses once are gathered before it
(`whole`), a layer's weights at the start of the layer, as `Decoder.shard_layout` says.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import SettingError
from grpo_jax.models import heads
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.layers import (
  PRODUCT,
  Attend,
  Aux,
  Block,
  RMSNorm,
  lookup,
  recomputed,
  rotated,
)
from grpo_jax.models.list_attention import attend_groups, attend_groups_keeping, attend_prompts
from grpo_jax.models.lora import Lora, has_adapters, merge
from grpo_jax.models.shape import DecoderConfig, Params
from grpo_jax.models.shards import GATHERED, gather, parameter_axes
from grpo_jax.packing.lists import GroupLists, prompt_list
from grpo_jax.packing.rows import Rows
from grpo_jax.types import Array, Prompts

# `Attend` that is also given the layer's spec.
AttendWith = Callable[[AttentionSpec, Array, Array, Array], tuple[Array, Aux]]
# (x, (parameters of a layer, which kind of attention it has)) -> (x, auxiliary output of that)
Layer = Callable[[Array, tuple[Params, Array | None]], tuple[Array, Aux]]


class KV(NamedTuple):
  """Keys and values of every layer."""

  keys: Array  # [N, P, Lp, K, head_dim]
  values: Array  # [N, P, Lp, K, head_dim]


# Choices for the fields of a Decoder that say how it runs.
HOW = {
  "layers": ("scan", "unroll"),
  "remat": ("none", "block", "dots"),
  "dtype": ("float32", "bfloat16"),
}


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A model as functions of plain parameter trees; frozen, so that jitted functions can hold it."""

  config: DecoderConfig
  layout: Layout
  layers: str = "scan"
  remat: str = "none"
  dtype: str = "float32"  # of activations and matrix products
  lora: Lora | None = None  # adapters that its trees may have
  # How parameters are sharded in the body of a shard_map over `shard_axes`; None: they are whole.
  shard_layout: Layout | None = None

  def __post_init__(self) -> None:
    for name, known in HOW.items():
      if (value := getattr(self, name)) not in known:
        setting = "model.dtype or sampler.dtype" if name == "dtype" else f"model.{name}"
        raise SettingError(f"{setting}: {value!r}; use one of {', '.join(known)}")

  # -- construction

  @functools.cached_property
  def _block(self) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Block(self.config, nnx.Rngs(0), self.lora)))[0]

  def _fresh_block(self, key: Array) -> Params:
    return nnx.to_pure_dict(nnx.split(Block(self.config, nnx.Rngs(params=key), self.lora))[1])

  @property
  def base(self) -> "Decoder":
    """Decoder of trees without adapters."""
    return dataclasses.replace(self, lora=None)

  def for_params(self, params: Params) -> "Decoder":
    """Returns the decoder of these parameters: `base` if they have no adapters."""
    return self if self.lora and has_adapters(params) else self.base

  def merged(self, params: Params) -> Params:
    """Returns parameters `[layers, ...]` with adapters merged in float32, see `lora.merge`."""
    if not has_adapters(params):
      return params
    return jax.jit(functools.partial(merge, self.lora), out_shardings=self.base.shardings())(params)

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    c = self.config
    k_embed, k_layers, k_out = jax.random.split(key, 3)
    params = {
      "embed": {"weight": 0.02 * jax.random.normal(k_embed, (c.vocab, c.width))},
      "layers": jax.vmap(self._fresh_block)(jax.random.split(k_layers, c.layers)),
      "final_norm": nnx.to_pure_dict(nnx.state(self._final_norm())),
    }
    if c.scores:
      params["score"] = heads.init_score(c.width)
    elif not c.tied:
      params["unembed"] = {"weight": 0.02 * jax.random.normal(k_out, (c.vocab, c.width))}
    # Residual branches start small (GPT-2's 1/sqrt(2N)), which suits deep random models.
    for branch, name in (("attention", "o"), ("mlp", "down")):
      w = params["layers"][branch][name]
      w["weight"] = w["weight"] * (2 * c.layers) ** -0.5
    return params

  def shapes(self) -> Params:
    """Returns the parameter tree as ShapeDtypeStructs."""
    return jax.tree.map(lambda shape: shape, _shapes(self.config, self.layout, self.lora))

  def axes(self) -> Params:
    """Returns the tuple of logical axis names of every parameter, for `Layout.named`."""
    return jax.tree_util.tree_map_with_path(
      functools.partial(parameter_axes, self.config.head_dim), self.shapes()
    )

  def shardings(self) -> Params:
    """Returns the sharding of every parameter."""
    return jax.tree.map(lambda spec: NamedSharding(self.layout.mesh, spec), self.specs(self.layout))

  def specs(self, layout: Layout) -> Params:
    """Returns the PartitionSpec of every parameter in a layout."""
    return jax.tree.map(
      lambda shape, axes: layout.spec(axes, shape.shape), self.shapes(), self.axes()
    )

  def in_shard(self) -> "Decoder":
    """Returns the decoder for the body of a `jax.shard_map` over the layout's `shard_axes`."""
    inside = self.layout.inside(self.layout.shard_axes)
    return dataclasses.replace(self, layout=inside, shard_layout=self.layout)

  @functools.cached_property
  def _shard_specs(self) -> Params:
    return self.specs(self.shard_layout or self.layout)

  def whole(self, params: Params) -> Params:
    """Returns the parameters with all but the layers gathered, which a pass uses once."""
    specs = self._shard_specs if self.shard_layout else {}
    names = [name for name in specs if name in params and name != "layers"]
    return params | {name: self._gather(params[name], specs[name]) for name in names}

  def _whole_layer(self, params: Params) -> Params:
    """Returns the parameters of one layer, gathered if they are sharded."""
    if self.shard_layout is None:
      return params
    # without the axis of layers
    specs = jax.tree.map(lambda spec: type(spec)(*spec[1:]), self._shard_specs["layers"])
    return self._gather(params, specs)

  def _gather(self, params: Params, specs: Params) -> Params:
    axes = self.shard_layout.shard_axes if self.shard_layout else ()
    return gather(params, specs, axes, self.dtype)

  def unembed(self, params: Params) -> Array:
    """Returns the unembedding `[V, D]`."""
    return params["embed" if self.config.tied else "unembed"]["weight"]

  # -- pieces, which the sampler runs one by one

  def _final_norm(self) -> RMSNorm:
    return RMSNorm(self.config.width, eps=self.config.norm_eps, plus_one=self.config.norm_plus_one)

  def norm(self, params: Params, x: Array) -> Array:
    """Returns x `[..., D]` after the final norm."""
    return nnx.merge(nnx.graphdef(self._final_norm()), params["final_norm"])(x)

  def embed(self, params: Params, tokens: Array) -> Array:
    """Returns the embeddings `[..., D]` of tokens `[...]`."""
    x = lookup(params["embed"]["weight"], tokens).astype(self.dtype)
    return x * jnp.asarray(self.config.width**0.5, x.dtype) if self.config.embed_scale else x

  def block(self, params: Params, x: Array, attend: Attend) -> tuple[Array, Aux]:
    """Returns x `[..., D]` after one layer, whose own `params` are, and what `attend` adds."""
    return nnx.merge(self._block, params)(x, attend)

  def at_positions(self, spec: AttentionSpec, positions: Array, attend: Attend) -> Attend:
    """Returns `attend` of queries and keys that are rotated to their positions `[...]` first."""
    rotate = recomputed(functools.partial(rotated, self.config, spec))
    return lambda q, k, v: attend(rotate(q, positions), rotate(k, positions), v)

  # -- whole passes

  def prefill(
    self, params: Params, prompts: Prompts, prompt_size: int | None = None
  ) -> tuple[Array, KV]:
    """Returns the last hidden state of each prompt `[P, D]`, after the final norm, and its KV.

    It takes one shard of prompts. With `prompt_size`, a number no less than that of real tokens,
    all but attention is computed on a list of this size.
    """
    tokens = prompt_list(prompts, prompt_size)
    positions_PxLp = jnp.broadcast_to(jnp.arange(prompts.tokens.shape[1]), prompts.tokens.shape)
    x = self.embed(params, tokens.to_list(prompts.tokens))
    positions = tokens.to_list(positions_PxLp)
    x, kv = self._layers(
      params,
      x,
      positions,
      functools.partial(attend_prompts, self.layout, self.config.kv_heads, tokens),
    )
    return self.norm(params, last_token(tokens.from_list(x), prompts.lengths)), KV(*kv)

  def forward(
    self, params: Params, prompts: Prompts, rows: Rows, lists: GroupLists
  ) -> tuple[Array, Array]:
    """Returns final hidden states of prompts and of all completions of their groups.

    It takes one shard of prompts and samples. Each prompt is computed once; where the group is
    sharded, once for each shard of it.

    Args:
      params: layers sharded as `shard_layout` says, all else whole (`whole`).
      prompts: `[P, Lp]`.
      rows: of completions, `[P, R, T]`.
      lists: of `packing.lists.group_lists`.

    Returns:
      Last hidden state of each prompt `[P, D]`, and those of the rows `[P, R, T, D]`.
    """
    hidden, _ = self._groups(params, prompts, rows, lists, attend_groups)
    return hidden

  def prefill_groups(
    self, params: Params, prompts: Prompts, rows: Rows, lists: GroupLists
  ) -> tuple[tuple[Array, Array], KV, KV]:
    """Returns the hidden states of `forward`, and the KV of prompts and of rows.

    The rows hold completions that have begun; arguments and states are those of `forward`.
    """
    hidden, (keys, values) = self._groups(params, prompts, rows, lists, attend_groups_keeping)
    both: Any = zip(zip(*keys), zip(*values))  # a tuple of layers stands for an axis of them
    of_prompts, of_rows = (KV(*kv) for kv in both)
    return hidden, of_prompts, of_rows

  def _groups(
    self, params: Params, prompts: Prompts, rows: Rows, lists: GroupLists, attend: Callable
  ) -> tuple[tuple[Array, Array], Aux]:
    """Returns the states of `forward`, and the auxiliary outputs of `attend`."""
    positions_PxLp = jnp.broadcast_to(jnp.arange(prompts.tokens.shape[1]), prompts.tokens.shape)
    positions_PxRxT = rows.offsets + prompts.lengths[:, None, None]
    tokens = lists.join(prompts.tokens, rows.tokens)
    positions = lists.join(positions_PxLp, positions_PxRxT)
    attend = functools.partial(attend, self.layout, self.config.kv_heads, lists, prompts, rows)
    x, aux = self._layers(params, self.embed(params, tokens), positions, attend)
    x_PxLpxD, x_PxRxTxD = lists.split(x)
    first = self.norm(params, last_token(x_PxLpxD, prompts.lengths))
    return (first, self.norm(params, x_PxRxTxD)), aux

  # -- layers

  def _layers(
    self, params: Params, x: Array, positions: Array, attend: AttendWith
  ) -> tuple[Array, Aux]:
    """Returns x `[..., D]` after all layers, and the auxiliary outputs of `attend`, stacked.

    Layers are scanned one by one. Where they have several kinds of attention, each chooses its own
    while it runs, so that none of the stacked weights is copied. The sampler has a list of layers,
    whose outputs are tuples.
    """
    stacked, unroll = params["layers"], self.layers == "unroll"
    specs = [self.config.layer_attention(i) for i in range(self.config.layers)]
    kinds = list(dict.fromkeys(specs))
    if isinstance(stacked, list) or (unroll and len(kinds) > 1):
      outputs = []
      for i, spec in enumerate(specs):
        layer = self._layer_function([spec], positions, attend)
        x, aux = layer(x, (_layer_of(stacked, i), None))
        outputs.append(aux)
      if isinstance(stacked, list):
        return x, tuple(zip(*outputs))
      return x, jax.tree.map(lambda *a: jnp.stack(a), *outputs)
    kind = jnp.array([kinds.index(spec) for spec in specs]) if len(kinds) > 1 else None
    layer = self._layer_function(kinds, positions, attend)
    return jax.lax.scan(layer, x, (stacked, kind), unroll=unroll)

  def _layer_function(
    self, kinds: Sequence[AttentionSpec], positions: Array, attend: AttendWith
  ) -> Layer:
    """Returns the function of a layer whose attention is one of these kinds."""
    of_kinds = [
      self.at_positions(spec, positions, functools.partial(attend, spec)) for spec in kinds
    ]
    layer = functools.partial(self._layer, of_kinds)
    if self.remat == "none" and self.shard_layout is None:
      return layer
    keep = jax.checkpoint_policies
    policies = {
      # Otherwise the gathered weights of all layers would be kept.
      "none": keep.save_anything_except_these_names(GATHERED),
      "dots": keep.save_only_these_names(PRODUCT),
      "block": None,
    }
    # In the body of a scan, XLA cannot merge the recomputation with the original.
    return jax.checkpoint(layer, policy=policies[self.remat], prevent_cse=self.layers == "unroll")

  def _layer(
    self, of_kinds: list[Attend], x: Array, params_and_kind: tuple[Params, Array | None]
  ) -> tuple[Array, Aux]:
    params, kind = params_and_kind
    attend = of_kinds[0] if kind is None else functools.partial(jax.lax.switch, kind, of_kinds)
    x, aux = self.block(self._whole_layer(params), x, attend)
    return self.layout.constrain(x, *(None,) * x.ndim), aux


def _layer_of(layers: list[Params] | Params, i: int) -> Params:
  """Returns the parameters of layer i, of a list or a stack."""
  return layers[i] if isinstance(layers, list) else jax.tree.map(lambda w: w[i], layers)


def last_token(x: Array, lengths: Array) -> Array:
  """Returns x `[P, T, D]` at the last real token of each, or at the first place if it has none."""
  index = jnp.maximum(lengths - 1, 0)[:, None, None]
  return jnp.take_along_axis(x, index, axis=1)[:, 0]


@functools.lru_cache(maxsize=64)
def _shapes(config: DecoderConfig, layout: Layout, lora: Lora | None) -> Params:
  """Returns the shapes of such a decoder, traced once: much asks for them."""
  return jax.eval_shape(Decoder(config, layout, lora=lora).init, jax.random.key(0))
