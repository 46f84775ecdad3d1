"""One decoder for every family: a table row (DecoderConfig) makes it Qwen, Llama or Gemma.

`Decoder` is the only place that knows of NNX modules. Outside it there are plain parameter trees:

    {"embed": {"weight" [V, D]}, "layers": {... [N, out, in] ...}, "final_norm": {"scale" [D]},
     "unembed": {"weight" [V, D]}}

with all layers stacked on a leading axis N; "unembed" is absent when embeddings are tied. It returns hidden states
and keys/values, never logits: those exist a chunk at a time (ops/logprobs.py) or for one token (sampler.py).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.errors import SettingError
from grpo_jax.models.attention import AttentionSpec, causal_attention, group_attention
from grpo_jax.models.layers import Block, RMSNorm
from grpo_jax.ops import packing
from grpo_jax.ops.packing import Places, Rows
from grpo_jax.sharding import Layout
from grpo_jax.types import Array, Prompts

Params = Any


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

  def attention_of(self, layer: int) -> AttentionSpec:
    """The attention of a layer."""
    return self.attention[layer % len(self.attention)]


class KV(NamedTuple):
  """Keys and values of every layer."""

  keys: Array  # [N, P, Lp, K, head_dim]
  values: Array  # [N, P, Lp, K, head_dim]


# What the fields of a Decoder that say how it runs may be.
HOW = {"layers": ("scan", "unroll"), "remat": ("none", "block", "dots"), "dtype": ("float32", "bfloat16")}


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Functions of plain parameter trees; frozen, so that it can be closed over by jitted functions.

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

  def init(self, key: Array) -> Params:
    """Fresh float32 parameters."""
    c = self.config
    k_embed, k_layers, k_out = jax.random.split(key, 3)
    make = lambda k: nnx.to_pure_dict(nnx.split(Block(c, nnx.Rngs(params=k)))[1])
    params = {
      "embed": {"weight": 0.02 * jax.random.normal(k_embed, (c.vocab, c.width))},
      "layers": jax.vmap(make)(jax.random.split(k_layers, c.layers)),
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
    """The parameter tree as ShapeDtypeStructs."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def axes(self) -> Params:
    """Logical axis names of every parameter, for `Layout.tree`."""
    d = self.config.head_dim
    table = {
      "embed": ("vocab", "embed"),
      "unembed": ("vocab", "embed"),
      "q": (("heads", d), "embed"),
      "k": (("kv_heads", d), "embed"),
      "v": (("kv_heads", d), "embed"),
      "o": ("embed", ("heads", d)),
      "gate": ("mlp", "embed"),
      "up": ("mlp", "embed"),
      "down": ("embed", "mlp"),
    }

    def names(path: tuple, leaf: Any) -> tuple:
      keys = [p.key for p in path]
      own = table.get(keys[-2], (None,))
      own = own[:1] if keys[-1] == "bias" else own
      return (None,) * (leaf.ndim - len(own)) + own

    return jax.tree_util.tree_map_with_path(names, self.shapes())

  def shardings(self) -> Params:
    shapes = self.shapes()
    return jax.tree.map(lambda s, a: self.layout.named(a, s.shape), shapes, self.axes())

  def unembed(self, params: Params) -> Array:
    """`[V, D]`."""
    return params["embed" if self.config.tied else "unembed"]["weight"]

  # -- running

  def _final_norm(self) -> RMSNorm:
    return RMSNorm(self.config.width, eps=self.config.norm_eps, plus_one=self.config.norm_plus_one)

  def norm(self, params: Params, x: Array) -> Array:
    return nnx.merge(nnx.graphdef(self._final_norm()), params["final_norm"])(x)

  def embed(self, params: Params, tokens: Array) -> Array:
    x = jnp.take(params["embed"]["weight"], tokens, axis=0).astype(self.dtype)
    return x * jnp.asarray(self.config.width**0.5, x.dtype) if self.config.embed_scale else x

  def block(self, params: Params, x: Array, positions: Array, attend: Any) -> tuple[Array, Any]:
    """One layer: its own parameters (not stacked), x `[..., D]`, positions `[...]`; see `layers.Block`."""
    return nnx.merge(self._block, params)(x, positions, attend)

  def _stack(self, params: Params, x: Array, positions: Array, attend: Any) -> tuple[Array, Any]:
    """All layers; auxiliary outputs of `attend` come back with a leading layer axis (stacked, or as lists)."""

    def body(x: Array, layer: Params) -> tuple[Array, Any]:
      x, aux = self.block(layer, x, positions, attend)
      return self.layout.constrain(x, *("prompt", "sample")[: x.ndim - 2], None, None), aux

    if self.remat != "none":
      policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
      body = jax.checkpoint(body, policy=policy, prevent_cse=self.layers == "unroll")
    if isinstance(params["layers"], list):  # the sampler's
      every = []
      for layer in params["layers"]:
        x, aux = body(x, layer)
        every.append(aux)
      return x, tuple(zip(*every))
    return jax.lax.scan(body, x, params["layers"], unroll=self.layers == "unroll")

  def _heads(self, x: Array) -> Array:
    c = self.config
    return x.reshape(*x.shape[:-2], c.kv_heads, c.heads // c.kv_heads, c.head_dim)

  def prefill(self, params: Params, prompts: Prompts, prompt_size: int | None = None) -> tuple[Array, KV]:
    """The prompts alone, of one shard: last hidden state of each `[P, D]`, and their keys and values.

    With `prompt_size`, at least as many as there are real tokens, all but attention is computed on a list of that many.
    """
    p, lp = prompts.tokens.shape
    at = prompt_places(prompts.lengths[None, None], lp, prompt_size)
    to_list = lambda x: packing.flatten(x.reshape(1, 1, p * lp, *x.shape[2:]), at)
    to_rows = lambda x: packing.unflatten(x, at).reshape(p, lp, *x.shape[3:])

    def mix(q: Array, k: Array, v: Array) -> tuple[Array, Any]:
      q, k, v = to_rows(self._heads(q)), to_rows(k), to_rows(v)
      return to_list(causal_attention(self.layout, q, k, v)), (k, v)

    positions = jnp.broadcast_to(jnp.arange(lp), (p, lp))
    x, kv = self._stack(params, self.embed(params, to_list(prompts.tokens)), to_list(positions), mix)
    return self.norm(params, last(to_rows(x), prompts.lengths)), KV(*kv)

  def forward(self, params: Params, prompts: Prompts, rows: Rows) -> tuple[Array, Array]:
    """Prompts and all completions of their groups in one pass; the prompt is computed once.

    Where the group is sharded, each shard has its own rows and computes the prompt for them.

    Returns:
      Last hidden state of each prompt `[P, D]`, and hidden states of the completion rows `[P, R, T, D]`,
      both after the final norm.
    """
    p, lp = prompts.tokens.shape
    a, b = row_shards(self.layout, rows)
    _, r, t = rows.tokens.shape
    shared = lambda x: jnp.broadcast_to(x[:, None], (p, b, *x.shape[1:]))

    def join(of_prompts: Array, of_rows: Array) -> Array:
      """`[P, B, Lp, ...]` and `[P, B, R / B * T, ...]` -> `[A, B, M + N, ...]`: lists of M and N tokens."""
      lists = (
        packing.flatten(to_shards(of_prompts, a), rows.prompts_at),
        packing.flatten(to_shards(of_rows, a), rows.at),
      )
      return jnp.concatenate(lists, axis=2)

    def split(x: Array) -> tuple[Array, Array]:
      """-> `[P, B, Lp, ...]` and `[P, B, R / B, T, ...]`."""
      m = p // a * lp if rows.prompts_at is None else rows.prompts_at.there.shape[2]
      of_prompts = from_shards(packing.unflatten(x[:, :, :m], rows.prompts_at), p)
      of_rows = from_shards(packing.unflatten(x[:, :, m:], rows.at), p)
      return of_prompts, of_rows.reshape(p, b, r // b, t, *x.shape[3:])

    lengths, segments = shared(prompts.lengths), rows.segments.reshape(p, b, r // b, t)

    def mix(q: Array, k: Array, v: Array) -> tuple[Array, None]:
      (qp, qc), (kp, kc), (vp, vc) = split(self._heads(q)), split(k), split(v)
      of_rows = group_attention(self.layout, qc, kc, vc, kp, vp, lengths, segments)
      return join(causal_attention(self.layout, qp, kp, vp), of_rows.reshape(p, b, -1, *of_rows.shape[4:])), None

    of_prompts = jnp.broadcast_to(jnp.arange(lp), (p, b, lp))
    of_rows = (rows.offsets + prompts.lengths[:, None, None]).reshape(p, b, -1)
    tokens = join(shared(prompts.tokens), rows.tokens.reshape(p, b, -1))
    x, _ = self._stack(params, self.embed(params, tokens), join(of_prompts, of_rows), mix)
    of_prompts, of_rows = split(x)
    first = last(of_prompts[:, 0], prompts.lengths)
    return self.norm(params, first), self.norm(params, of_rows.reshape(p, r, t, -1))


def prompt_places(lengths: Array, width: int, size: int | None) -> Places | None:
  """Where the real tokens of prompts of lengths `[A, B, P / A]` lie in their rectangles; None without a size."""
  if size is None:
    return None
  real = jnp.arange(width) < lengths[..., None]
  return packing.places(real.reshape(*lengths.shape[:2], -1), size)


def row_shards(layout: Layout, rows: Rows) -> tuple[int, int]:
  """Into how many parts (A, B) the mesh cuts the prompts, and the rows of a prompt, where they divide."""
  parts = ((n, layout.size(name)) for n, name in zip(rows.tokens.shape, ("prompt", "sample")))
  return tuple(1 if n % size else size for n, size in parts)


def to_shards(x: Array, a: int) -> Array:
  """x `[P, B, n, ...]` -> `[A, B, P / A * n, ...]`, the tokens of each shard in a row."""
  p, b, n, *rest = x.shape
  return x.reshape(a, p // a, b, n, *rest).swapaxes(1, 2).reshape(a, b, p // a * n, *rest)


def from_shards(x: Array, p: int) -> Array:
  """Undoes `to_shards`."""
  a, b, n, *rest = x.shape
  return x.reshape(a, b, p // a, n * a // p, *rest).swapaxes(1, 2).reshape(p, b, n * a // p, *rest)


def last(x: Array, lengths: Array) -> Array:
  """x `[P, T, D]` at position length - 1 -> `[P, D]`."""
  index = jnp.maximum(lengths - 1, 0)[:, None, None]
  return jnp.take_along_axis(x, index, axis=1)[:, 0]
