"""Modules of a decoder layer, in Flax NNX.

Weights are stored `[out, in]`, as Hugging Face does: nothing is transposed on import or export, and
a decode step reads them in the layout that is fastest for few tokens.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.int8 import Int8
from grpo_jax.models.lora import Lora
from grpo_jax.models.shape import DecoderConfig
from grpo_jax.ops.precision import outer_sum, precision
from grpo_jax.types import Array

Aux = Any  # auxiliary output of attention: a tree of arrays, or None
# (q, k, v) of a layer -> (attention like q, auxiliary output)
Attend = Callable[[Array, Array, Array], tuple[Array, Aux]]

PRODUCT = "product"  # name of what a matrix makes, for `model.remat`
FEW_ROWS = 256  # up to this many rows a CPU computes weight @ x.T faster than x @ weight.T


def linear(weight: Array | Int8[Array], x: Array, dtype: DTypeLike | None = None) -> Array:
  """Returns x `[..., in]` times the transpose of weight `[out, in]`; `dtype` None: that of x."""
  if isinstance(weight, Int8):
    y = linear(weight.x, x, dtype)
    return (y * weight.scale).astype(y.dtype)
  weight = weight.astype(x.dtype)
  if x.dtype == jnp.bfloat16 and dtype in (None, jnp.bfloat16):
    return _linear_bfloat16(weight, x)
  if math.prod(x.shape[:-1]) > FEW_ROWS:
    return _product(x, weight, (x.ndim - 1,), (1,), dtype)
  return jax.lax.platform_dependent(
    weight,
    x,
    cpu=functools.partial(_linear_transposed, dtype),
    default=lambda weight, x: _product(x, weight, (x.ndim - 1,), (1,), dtype),
  )


def _linear_transposed(dtype: DTypeLike | None, weight: Array, x: Array) -> Array:
  out = _product(weight, x, (1,), (x.ndim - 1,), dtype)
  # Without the barrier XLA transposes the product back.
  return jnp.moveaxis(jax.lax.optimization_barrier(out), 0, -1)


def _product(
  a: Array, b: Array, a_axes: Sequence[int], b_axes: Sequence[int], dtype: DTypeLike | None
) -> Array:
  """Returns the sums over the axes of a and b of their products, in `dtype`."""
  return jax.lax.dot_general(
    a, b, ((a_axes, b_axes), ((), ())), precision=precision(a.dtype), preferred_element_type=dtype
  )


@jax.custom_vjp
def _linear_bfloat16(weight: Array, x: Array) -> Array:
  """Returns `linear` of bfloat16 arrays, whose gradients are such products, too."""
  return _product_bfloat16(x, weight, (x.ndim - 1,), (1,))


def _linear_bfloat16_forward(weight: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
  return _linear_bfloat16(weight, x), (weight, x)


def _linear_bfloat16_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
  weight, x = saved
  rows_of_g, rows_of_x = (y.reshape(-1, y.shape[-1]) for y in (g, x))
  d_weight = outer_sum(rows_of_g, rows_of_x, jnp.bfloat16)
  return d_weight, _product_bfloat16(g, weight, (x.ndim - 1,), (0,))


_linear_bfloat16.defvjp(_linear_bfloat16_forward, _linear_bfloat16_backward)


def _product_bfloat16(a: Array, b: Array, a_axes: Sequence[int], b_axes: Sequence[int]) -> Array:
  """Returns `_product` of bfloat16 arrays.

  The sums are made in float32 everywhere. A CPU needs about half the time if it returns them in
  float32 and they are rounded afterwards.
  """
  return jax.lax.platform_dependent(
    a,
    b,
    cpu=lambda a, b: _product(a, b, a_axes, b_axes, jnp.float32).astype(jnp.bfloat16),
    default=lambda a, b: _product(a, b, a_axes, b_axes, jnp.bfloat16),
  )


@jax.custom_vjp
def lookup(table: Array, tokens: Array) -> Array:
  """Returns the rows of `table [V, D]` at `tokens [...]`: `[..., D]`.

  The gradient is summed in float32 whatever the dtype: a frequent token has many terms.
  """
  if table.dtype != jnp.bfloat16:
    return jnp.take(table, tokens, axis=0)
  return jax.lax.platform_dependent(
    table, tokens, cpu=_lookup_bits, default=functools.partial(jnp.take, axis=0)
  )


def _lookup_bits(table: Array, tokens: Array) -> Array:
  """Returns `lookup` of bfloat16 as whole numbers: XLA would copy the table to float32 on a CPU."""
  bits = jax.lax.bitcast_convert_type(table, jnp.uint16)
  return jax.lax.bitcast_convert_type(jnp.take(bits, tokens, axis=0), table.dtype)


def _lookup_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
  return lookup(table, tokens), (table, tokens)


def _lookup_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, None]:
  table, tokens = saved
  gradient = jnp.zeros(table.shape, jnp.float32).at[tokens].add(g.astype(jnp.float32))
  return gradient.astype(table.dtype), None


lookup.defvjp(_lookup_forward, _lookup_backward)


def long_context(
  frequency: Array, factor: float, low: float, high: float, original: float
) -> Array:
  """Returns Llama 3.1's rotary frequencies `[half]`.

  Wavelengths over `original / low` tokens are stretched by `factor`, those under `original / high`
  are kept, and those between are blended.
  """
  turns = original * frequency / (2 * math.pi)  # in the original context
  keep = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
  return frequency * (keep + (1.0 - keep) / factor)


def rope(
  x: Array,
  positions: Array,
  theta: float,
  scaling: tuple[float, ...] | None = None,
  linear: float = 1.0,
) -> Array:
  """Returns x `[..., T, heads, head_dim]` with rotary positions, halves rotated as in Llama.

  Su et al. 2021, with linear scaling by Chen et al. 2023.

  Args:
    x: queries or keys.
    positions: `[..., T]` int32.
    theta: base of the frequencies.
    scaling: arguments of `long_context`.
    linear: divisor of the positions.
  """
  half = x.shape[-1] // 2
  frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  if scaling:
    frequency = long_context(frequency, *scaling)
  frequency = frequency / linear
  angle = positions[..., None, None].astype(jnp.float32) * frequency
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


# Kept for the backward pass, these would be several float32 arrays for one in bfloat16.
recomputed = functools.partial(jax.checkpoint, prevent_cse=False)


class Linear(nnx.Module):
  """Computes y = W x (+ b), and with an adapter (lora.py) + scale * B A x."""

  def __init__(
    self,
    n_in: int,
    n_out: int,
    *,
    bias: bool = False,
    rank: int = 0,
    scale: float = 1.0,
    rngs: nnx.Rngs,
  ):
    std = 1.0 / math.sqrt(n_in)
    self.weight = nnx.Param(
      std * jax.random.truncated_normal(rngs.params(), -3, 3, (n_out, n_in), jnp.float32)
    )
    if bias:
      self.bias = nnx.Param(jnp.zeros((n_out,), jnp.float32))
    if rank:
      self.lora_a = nnx.Param(
        jax.random.uniform(rngs.params(), (rank, n_in), jnp.float32, -std, std)
      )
      self.lora_b = nnx.Param(jnp.zeros((n_out, rank), jnp.float32))
      self.scale = scale

  def __call__(self, x: Array) -> Array:
    y = linear(self.weight.get_value(), x)
    if hasattr(self, "bias"):
      y = y + self.bias[...].astype(x.dtype)
    if hasattr(self, "lora_a"):
      y = y + self.scale * linear(self.lora_b[...], linear(self.lora_a[...], x))
    return checkpoint_name(y, PRODUCT)


def _projection(
  lora: Lora | None, rngs: nnx.Rngs, name: str, n_in: int, n_out: int, bias: bool = False
) -> Linear:
  """Returns the projection of that name, with the adapter that `lora` gives it."""
  rank, scale = (lora.adapter_rank(name), lora.scale) if lora else (0, 1.0)
  return Linear(n_in, n_out, bias=bias, rank=rank, scale=scale, rngs=rngs)


class RMSNorm(nnx.Module):
  """Root mean square norm (Zhang & Sennrich 2019) in float32; `plus_one`: Gemma's 1 + scale."""

  def __init__(self, width: int, *, eps: float, plus_one: bool = False):
    self.scale = nnx.Param((jnp.zeros if plus_one else jnp.ones)((width,), jnp.float32))
    self.eps, self.plus_one = eps, plus_one

  def __call__(self, x: Array) -> Array:
    return recomputed(self._normed)(x, self.scale[...])

  def _normed(self, x: Array, scale: Array) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
    # In float32 before 1 is added: a small bfloat16 would be lost.
    scale = scale.astype(jnp.float32)
    return (y * (scale + 1.0 if self.plus_one else scale)).astype(x.dtype)


class Attention(nnx.Module):
  """Grouped-query attention: projections around the caller's `attend`."""

  def __init__(self, c: DecoderConfig, rngs: nnx.Rngs, lora: Lora | None = None):
    linear = functools.partial(_projection, lora, rngs)
    self.q = linear("q", c.width, c.heads * c.head_dim, bias=c.attention_bias)
    self.k = linear("k", c.width, c.kv_heads * c.head_dim, bias=c.attention_bias)
    self.v = linear("v", c.width, c.kv_heads * c.head_dim, bias=c.attention_bias)
    self.o = linear("o", c.heads * c.head_dim, c.width)
    if c.qk_norm or c.qk_norm_whole:
      q_heads, k_heads = (c.heads, c.kv_heads) if c.qk_norm_whole else (1, 1)
      self.q_norm = RMSNorm(q_heads * c.head_dim, eps=c.norm_eps, plus_one=c.norm_plus_one)
      self.k_norm = RMSNorm(k_heads * c.head_dim, eps=c.norm_eps, plus_one=c.norm_plus_one)
    self.c = c

  def __call__(self, x: Array, attend: Attend) -> tuple[Array, Aux]:
    c = self.c
    q, k, v = self.q(x), self.k(x), self.v(x)
    if c.qk_norm_whole:
      q, k = self.q_norm(q), self.k_norm(k)
    q = q.reshape(*x.shape[:-1], c.heads, c.head_dim)
    k, v = (y.reshape(*x.shape[:-1], c.kv_heads, c.head_dim) for y in (k, v))
    if c.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    out, aux = attend(q, k, v)
    return self.o(out.reshape(*x.shape[:-1], c.heads * c.head_dim)), aux


def rotated(c: DecoderConfig, spec: AttentionSpec, x: Array, positions: Array) -> Array:
  """Returns queries or keys `[..., T, heads, head_dim]` with the rotary positions of a layer."""
  if not spec.rope:
    return x
  if spec.rope_theta is not None:
    return rope(x, positions, spec.rope_theta)
  return rope(x, positions, c.rope_theta, c.rope_scaling, c.rope_linear)


class MLP(nnx.Module):
  """Gated MLP (Shazeer 2020)."""

  def __init__(self, c: DecoderConfig, rngs: nnx.Rngs, lora: Lora | None = None):
    linear = functools.partial(_projection, lora, rngs)
    self.gate = linear("gate", c.width, c.mlp)
    self.up = linear("up", c.width, c.mlp)
    self.down = linear("down", c.mlp, c.width)
    gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
    self.act: Callable[[Array], Array] = jax.nn.silu if c.activation == "silu" else gelu_tanh

  def __call__(self, x: Array) -> Array:
    gated = recomputed(lambda gate, up: self.act(gate) * up)
    return self.down(gated(self.gate(x), self.up(x)))


class Block(nnx.Module):
  """One decoder layer, with norms before attention and MLP, after them, or both."""

  def __init__(self, c: DecoderConfig, rngs: nnx.Rngs, lora: Lora | None = None):
    norm = functools.partial(RMSNorm, c.width, eps=c.norm_eps, plus_one=c.norm_plus_one)
    self.attention, self.mlp = Attention(c, rngs, lora), MLP(c, rngs, lora)
    if c.pre_norms:
      self.attention_norm, self.mlp_norm = norm(), norm()
    if c.post_norms:
      self.attention_post_norm, self.mlp_post_norm = norm(), norm()
    self.c = c

  def __call__(self, x: Array, attend: Attend) -> tuple[Array, Aux]:
    """Returns x `[..., D]` after the layer, and the auxiliary output of `attend`."""
    c = self.c
    y, aux = self.attention(self.attention_norm(x) if c.pre_norms else x, attend)
    x = x + (self.attention_post_norm(y) if c.post_norms else y)
    y = self.mlp(self.mlp_norm(x) if c.pre_norms else x)
    return x + (self.mlp_post_norm(y) if c.post_norms else y), aux
