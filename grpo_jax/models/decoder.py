"""One decoder for every family: a table row (DecoderConfig) makes it Qwen, Llama or Gemma.

`Decoder` is the only place that knows of NNX modules. Outside it there are plain parameter trees:

    {"embed": {"weight" [V, D]}, "layers": {... [N, out, in] ...}, "final_norm": {"scale" [D]},
     "unembed": {"weight" [V, D]}}

with all layers stacked on a leading axis N; "unembed" is absent when embeddings are tied. It returns hidden states
and keys/values, never logits: those exist a chunk at a time (ops/logprobs.py) or for one token (sampler.py).

Everything but attention treats a token by itself. So tokens go through the layers as lists `[A, B, N, D]`, one for each
shard of the mesh, and attention alone takes them apart into prompts and rows of completions. That is all that there is
to know of packing here: `lists.join` makes lists and `lists.split` undoes it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.errors import SettingError
from grpo_jax.models.attention import AttentionSpec, causal_attention, group_attention
from grpo_jax.models.layers import Block, RMSNorm
from grpo_jax.packing.lists import GroupLists, ShardLists, prompt_lists
from grpo_jax.packing.rows import Rows
from grpo_jax.sharding import Axis, Layout
from grpo_jax.types import Array, Prompts

Params = Any
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]  # (q, k, v) of a layer -> (like q, what else comes of it)
AttendWith = Callable[[AttentionSpec, Array, Array, Array], tuple[Array, Any]]  # the same for a layer's spec


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """The shape of a decoder; hashable."""

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  rope_theta: float = 10000.0
  rope_scaling: tuple[float, float, float, float] | None = None  # Llama 3: see layers.long_context
  norm_eps: float = 1e-6
  qk_norm: bool = False  # Qwen3
  attention_bias: bool = False  # biases of q, k and v: Qwen2
  tied: bool = True  # the unembedding is the embedding
  norm_plus_one: bool = False  # Gemma
  embed_scale: bool = False  # multiply embeddings by sqrt(width): Gemma
  activation: str = "silu"  # silu or gelu_tanh
  attention: tuple[AttentionSpec, ...] = (AttentionSpec(),)  # layer i has attention[i % len(attention)]
  logit_soft_cap: float = 0.0  # logits become soft_cap * tanh(logits / soft_cap); 0: they stay as they are

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> "DecoderConfig":
    """Returns the config whose `dataclasses.asdict` went through JSON.

    Raises:
      TypeError: fields that a config does not have.
    """
    specs = tuple(AttentionSpec(**spec) for spec in fields["attention"])
    scaling = fields["rope_scaling"]
    return cls(**fields | {"attention": specs, "rope_scaling": scaling and tuple(scaling)})

  def attention_of(self, layer: int) -> AttentionSpec:
    """Returns what the attention of that layer computes."""
    return self.attention[layer % len(self.attention)]


class KV(NamedTuple):
  """Keys and values of every layer."""

  keys: Array  # [N, P, Lp, K, head_dim]
  values: Array  # [N, P, Lp, K, head_dim]


# What the fields of a Decoder that say how it runs may be.
HOW = {"layers": ("scan", "unroll"), "remat": ("none", "block", "dots"), "dtype": ("float32", "bfloat16")}


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A model as functions of plain parameter trees; frozen, so that jitted functions can close over it.

  Raises:
    SettingError: layers, remat or dtype that is none of HOW.
  """

  config: DecoderConfig
  layout: Layout
  layers: str = "scan"
  remat: str = "none"
  dtype: str = "float32"  # of activations and matrix products

  def __post_init__(self) -> None:
    for name, known in HOW.items():
      if (value := getattr(self, name)) not in known:
        setting = "model.dtype or sampler.dtype" if name == "dtype" else f"model.{name}"
        raise SettingError(f"{setting}: {value!r}; use one of {', '.join(known)}")

  # -- construction

  @functools.cached_property
  def _block(self) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Block(self.config, nnx.Rngs(0))))[0]

  def _fresh_block(self, key: Array) -> Params:
    return nnx.to_pure_dict(nnx.split(Block(self.config, nnx.Rngs(params=key)))[1])

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    c = self.config
    k_embed, k_layers, k_out = jax.random.split(key, 3)
    params = {
      "embed": {"weight": 0.02 * jax.random.normal(k_embed, (c.vocab, c.width))},
      "layers": jax.vmap(self._fresh_block)(jax.random.split(k_layers, c.layers)),
      "final_norm": nnx.to_pure_dict(nnx.state(self._final_norm())),
    }
    if not c.tied:
      params["unembed"] = {"weight": 0.02 * jax.random.normal(k_out, (c.vocab, c.width))}
    # Residual branches start small (GPT-2's 1/sqrt(2N)), so that deep random models are well scaled.
    for branch, name in (("attention", "o"), ("mlp", "down")):
      w = params["layers"][branch][name]
      w["weight"] = w["weight"] * (2 * c.layers) ** -0.5
    return params

  def shapes(self) -> Params:
    """Returns the parameter tree as ShapeDtypeStructs."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def axes(self) -> Params:
    """Returns the tuple of logical axis names of every parameter, for `Layout.named`."""
    return jax.tree_util.tree_map_with_path(functools.partial(_parameter_axes, self.config.head_dim), self.shapes())

  def shardings(self) -> Params:
    """Returns the sharding of every parameter."""
    return jax.tree.map(lambda shape, axes: self.layout.named(axes, shape.shape), self.shapes(), self.axes())

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
    x = jnp.take(params["embed"]["weight"], tokens, axis=0).astype(self.dtype)
    return x * jnp.asarray(self.config.width**0.5, x.dtype) if self.config.embed_scale else x

  def block(self, params: Params, x: Array, positions: Array, attend: Attend) -> tuple[Array, Any]:
    """Returns x `[..., D]` after one layer, and the auxiliary output of its `attend`.

    params: the layer's own, not stacked; positions: `[...]`; see `layers.Block`.
    """
    return nnx.merge(self._block, params)(x, positions, attend)

  # -- whole passes

  def prefill(self, params: Params, prompts: Prompts, prompt_size: int | None = None) -> tuple[Array, KV]:
    """Returns the last hidden state of each prompt `[P, D]`, after the final norm, and the prompts' keys and values.

    Of one shard of prompts, without completions. With `prompt_size`, at least as many as there are real tokens, all but
    attention is computed on a list of that many.
    """
    lists = prompt_lists(prompts, prompt_size)  # A = B = 1
    tokens_Px1xLp = prompts.tokens[:, None]
    positions_Px1xLp = jnp.broadcast_to(jnp.arange(tokens_Px1xLp.shape[2]), tokens_Px1xLp.shape)
    tokens, positions = lists.to_list(tokens_Px1xLp), lists.to_list(positions_Px1xLp)
    attend = functools.partial(_attend_prompts, self, lists)
    x, kv = self._layers(params, self.embed(params, tokens), positions, attend)
    last = last_token(lists.from_list(x)[:, 0], prompts.lengths)
    return self.norm(params, last), KV(*kv)

  def forward(self, params: Params, prompts: Prompts, rows: Rows, lists: GroupLists) -> tuple[Array, Array]:
    """Returns hidden states of prompts and of all completions of their groups; each prompt is computed once.

    (Where the group is sharded, once for each shard of it.)

    Args:
      prompts: `[P, Lp]`.
      rows: of completions, `[P, R, T]`.
      lists: of `packing.lists.group_lists`.

    Returns:
      Last hidden state of each prompt `[P, D]`, and those of the rows `[P, R, T, D]`, both after the final norm.
    """
    positions_PxLp = jnp.broadcast_to(jnp.arange(prompts.tokens.shape[1]), prompts.tokens.shape)
    positions_PxRxT = rows.offsets + prompts.lengths[:, None, None]
    tokens = lists.join(lists.share_prompts(prompts.tokens), lists.split_rows(rows.tokens))
    positions = lists.join(lists.share_prompts(positions_PxLp), lists.split_rows(positions_PxRxT))
    attend = functools.partial(_attend_groups, self, lists, prompts, rows)
    x, _ = self._layers(params, self.embed(params, tokens), positions, attend)
    x_PxBxLpxD, x_rows = lists.split(x)
    last = last_token(x_PxBxLpxD[:, 0], prompts.lengths)
    return self.norm(params, last), self.norm(params, x_rows.reshape(*rows.tokens.shape, -1))

  # -- layers

  def _layers(self, params: Params, x: Array, positions: Array, attend: AttendWith) -> tuple[Array, Any]:
    """Returns x `[..., D]` after all layers, and the auxiliary outputs of `attend`, stacked (or a tuple).

    The attention of layers repeats with a period (`DecoderConfig.attention`): periods are scanned, the layers of one
    unrolled, and those that do not fill a last period follow.
    """
    stacked, period = params["layers"], len(self.config.attention)
    layers = [self._layer_function(spec, positions, attend) for spec in self.config.attention]
    if isinstance(stacked, list):  # the sampler has each layer by itself
      x, every = _run_in_turn(layers, x, stacked)
      return x, tuple(zip(*every))
    unroll = self.layers == "unroll"
    if period == 1:
      return jax.lax.scan(layers[0], x, stacked, unroll=unroll)
    n_periods = self.config.layers // period
    whole = n_periods * period
    periods = jax.tree.map(lambda w: w[:whole].reshape(n_periods, period, *w.shape[1:]), stacked)
    x, aux = jax.lax.scan(functools.partial(_run_period, layers), x, periods, unroll=unroll)
    aux = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), aux)
    if whole == self.config.layers:
      return x, aux
    rest = jax.tree.map(lambda w: w[whole:], stacked)
    x, aux_rest = _run_period(layers[: self.config.layers - whole], x, rest)
    return x, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), aux, aux_rest)

  def _layer_function(self, spec: AttentionSpec, positions: Array, attend: AttendWith) -> Callable:
    """Returns the function `(x, params of one layer) -> (x, aux)` of layers with that attention."""
    layer = functools.partial(self._layer, functools.partial(attend, spec), positions)
    if self.remat == "none":
      return layer
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
    # In the body of a scan XLA cannot merge what is computed again with what was; outside it would.
    only_scanned = self.layers == "scan" and len(self.config.attention) == 1
    return jax.checkpoint(layer, policy=policy, prevent_cse=not only_scanned)

  def _layer(self, attend: Attend, positions: Array, x: Array, params: Params) -> tuple[Array, Any]:
    x, aux = self.block(params, x, positions, attend)
    return self.layout.constrain(x, *("prompt", "sample")[: x.ndim - 2], None, None), aux


def _run_in_turn(layers: Sequence[Callable], x: Array, params: Sequence[Params]) -> tuple[Array, list]:
  """Returns x after as many layers as there are params, by their functions in turn, and the aux of each."""
  every = []
  for i, layer_params in enumerate(params):
    x, aux = layers[i % len(layers)](x, layer_params)
    every.append(aux)
  return x, every


def _run_period(layers: Sequence[Callable], x: Array, params: Params) -> tuple[Array, Any]:
  """Returns x after a layer of each function, params stacked `[len(layers), ...]`, and their aux stacked likewise."""
  each = [jax.tree.map(lambda w, i=i: w[i], params) for i in range(len(layers))]
  x, every = _run_in_turn(layers, x, each)
  return x, jax.tree.map(lambda *a: jnp.stack(a), *every)


def _by_kv_head(c: DecoderConfig, q: Array) -> Array:
  """Returns queries `[..., H, d]` as `[..., K, M, d]`: M query heads for each key/value head."""
  return q.reshape(*q.shape[:-2], c.kv_heads, c.heads // c.kv_heads, c.head_dim)


def _attend_prompts(
  decoder: Decoder, lists: ShardLists, spec: AttentionSpec, q: Array, k: Array, v: Array
) -> tuple[Array, tuple[Array, Array]]:
  """Returns attention of prompts alone, in lists like q, and their keys and values `[P, Lp, K, d]`."""
  q_PxLpxKxMxd = lists.from_list(_by_kv_head(decoder.config, q))[:, 0]
  k_PxLpxKxd, v_PxLpxKxd = lists.from_list(k)[:, 0], lists.from_list(v)[:, 0]
  out = causal_attention(decoder.layout, spec, q_PxLpxKxMxd, k_PxLpxKxd, v_PxLpxKxd)
  return lists.to_list(out[:, None]), (k_PxLpxKxd, v_PxLpxKxd)


def _attend_groups(
  decoder: Decoder,
  lists: GroupLists,
  prompts: Prompts,
  rows: Rows,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
) -> tuple[Array, None]:
  """Returns attention of prompts to themselves and of rows to their prompt and themselves, in lists like q."""
  layout, lengths_PxB = decoder.layout, lists.share_prompts(prompts.lengths)
  q_prompt, q_rows = lists.split(_by_kv_head(decoder.config, q))  # [P, B, Lp, K, M, d], [P, B, R / B, T, K, M, d]
  (k_prompt, k_rows), (v_prompt, v_rows) = lists.split(k), lists.split(v)
  segments, offsets = lists.split_rows(rows.segments), lists.split_rows(rows.offsets)
  of_prompts = causal_attention(layout, spec, q_prompt, k_prompt, v_prompt)
  of_rows = group_attention(layout, spec, q_rows, k_rows, v_rows, k_prompt, v_prompt, lengths_PxB, segments, offsets)
  return lists.join(of_prompts, of_rows), None


def _parameter_axes(head_dim: int, path: tuple, leaf: Any) -> tuple[Axis, ...]:
  """Returns the logical axes of a parameter by the name of its module; a stack of layers has axes before them."""
  table = {
    "embed": ("vocab", "embed"),
    "unembed": ("vocab", "embed"),
    "q": (("heads", head_dim), "embed"),
    "k": (("kv_heads", head_dim), "embed"),
    "v": (("kv_heads", head_dim), "embed"),
    "o": ("embed", ("heads", head_dim)),
    "gate": ("mlp", "embed"),
    "up": ("mlp", "embed"),
    "down": ("embed", "mlp"),
  }
  *_, module, name = (p.key for p in path)
  axes = table.get(module, (None,))
  axes = axes[:1] if name == "bias" else axes
  return (None,) * (leaf.ndim - len(axes)) + axes


def last_token(x: Array, lengths: Array) -> Array:
  """Returns x `[P, T, D]` at the last real token of each, `[P, D]`; at the first place where there is none."""
  index = jnp.maximum(lengths - 1, 0)[:, None, None]
  return jnp.take_along_axis(x, index, axis=1)[:, 0]
