"""Softmax attention of prompts and of completion rows, with a kernel for each platform.

    cpu   scores written out (`attend`)
    gpu   cuDNN's flash attention (`flash`); `attend` where cuDNN has no kernel (`fits_flash`)
    tpu   splash attention (`splash`)

The kernels hold a block of scores at a time; written out, they are T x S numbers for every head and
row. Kernels run shard by shard: batch and heads are sharded as the activations are, so that nothing
is exchanged.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as splash_kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from grpo_jax.distributed.sharding import Layout
from grpo_jax.ops.decoding import soft_cap
from grpo_jax.ops.precision import precision
from grpo_jax.types import Array

# Score of a key that must not be attended to; finite, so that a row without keys stays finite.
MASKED = -1e30
LANES = 128  # kernels take sequences in multiples of this
BLOCKS = (512, 384, 256, 128)  # block sizes of queries and keys; the first that divides is used


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
  """Describes the attention of one layer, for the learner's rows and the sampler's slots alike.

  Mistral uses a sliding window in every layer, Gemma 2 and 3 in most. Gemma 2 also has a soft cap
  and, like Gemma 3, its own query scale.
  """

  window: int = 0  # number of last tokens that a token sees, itself included; 0: no window
  soft_cap: float = 0.0  # scores become soft_cap * tanh(scores / soft_cap); 0: no cap
  scale: float | None = None  # factor of the queries; None: head_dim ** -0.5
  rope: bool = True  # rotary positions; some layers of SmolLM3 have none
  # Theta of Gemma 3's windowed layers, which have no rope scaling; None: the decoder's.
  rope_theta: float | None = None

  def query_scale(self, head_dim: int) -> float:
    """Returns the factor that queries are multiplied by."""
    return head_dim**-0.5 if self.scale is None else self.scale

  def scaled(self, q: Array) -> Array:
    """Returns queries `[..., d]` times `query_scale`, which bfloat16 need not hold."""
    return (q.astype(jnp.float32) * self.query_scale(q.shape[-1])).astype(q.dtype)


def by_kv_head(q: Array, kv_heads: int) -> Array:
  """Returns queries `[..., H, d]` as `[..., K, M, d]`, M query heads for each key/value head."""
  return q.reshape(*q.shape[:-2], kv_heads, q.shape[-2] // kv_heads, q.shape[-1])


def causal_attention(layout: Layout, spec: AttentionSpec, q: Array, k: Array, v: Array) -> Array:
  """Returns causal self-attention `[..., T, K, M, d]`; right padding does not affect real tokens.

  Args:
    layout: its platform chooses the kernel.
    spec: attention of the layer.
    q: `[..., T, K, M, d]`; k, v: `[..., T, K, d]`.
  """
  *lead, t, _, _, _ = q.shape
  if layout.platform == "tpu":
    return sharded(layout, functools.partial(splash, spec), q, k, v)
  if fits_flash(layout, spec, q) and not spec.window:
    return sharded(layout, functools.partial(flash, spec), q, k, v)
  visible = jnp.tril(jnp.ones((t, t), bool))
  if spec.window:
    visible &= within_window(spec, jnp.arange(t), jnp.arange(t))
  visible = jnp.broadcast_to(visible, (*lead, t, t))
  if fits_flash(layout, spec, q):
    return sharded(layout, functools.partial(flash, spec), q, k, v, visible)
  return attend(spec, q, *keys_values(k, v), visible)


def group_attention(
  layout: Layout,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
  prompt_k: Array,
  prompt_v: Array,
  lengths: Array,
  segments: Array,
  offsets: Array,
) -> Array:
  """Returns attention of completion rows to their group's prompt and causally to themselves.

  Args:
    layout: its platform chooses the kernel.
    spec: attention of the layer. A window counts positions: a completion token's position is its
      offset plus the prompt's length.
    q: `[..., R, T, K, M, d]`; k, v: `[..., R, T, K, d]`.
    prompt_k, prompt_v: `[..., Lp, K, d]`, computed once for the group.
    lengths: `[...]` prompt lengths.
    segments: `[..., R, T]`; a token sees its own segment only. Ignored on a TPU, where a row holds
      one completion (`packing.plan.pack`).
    offsets: `[..., R, T]`, position of each token in its completion.

  Returns:
    `[..., R, T, K, M, d]`, from one softmax over the prompt's keys and the row's own.
  """
  *lead, r, t = segments.shape
  if layout.platform == "tpu":
    return _group_splash(layout, spec, q, k, v, prompt_k, prompt_v, lengths)
  lp = prompt_k.shape[-3]
  sees_prompt = jnp.arange(lp) < lengths[..., None, None, None]
  sees_row = jnp.tril(jnp.ones((t, t), bool)) & (segments[..., :, None] == segments[..., None, :])
  # A completion is contiguous, so that distances in a row are distances of positions.
  if spec.window:
    sees_prompt &= within_window(spec, offsets + lengths[..., None, None], jnp.arange(lp))
    sees_row &= within_window(spec, jnp.arange(t), jnp.arange(t))
  visible = jnp.concatenate([jnp.broadcast_to(sees_prompt, (*lead, r, t, lp)), sees_row], axis=-1)
  if fits_flash(layout, spec, q):
    k, v = prepend(prompt_k, k, -3), prepend(prompt_v, v, -3)
    return sharded(layout, functools.partial(flash, spec), q, k, v, visible)
  k, v = keys_values(k, v)
  prompt_k, prompt_v = keys_values(prompt_k, prompt_v)
  return attend(spec, q, prepend(prompt_k, k, -1), prepend(prompt_v, v, -2), visible)


def _group_splash(
  layout: Layout,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
  prompt_k: Array,
  prompt_v: Array,
  lengths: Array,
) -> Array:
  """Returns `group_attention` by splash attention, one completion a row.

  The kernel's window counts places. So where there is a window, the prompt's keys are moved to end
  where the completion begins (their rotary positions stay).
  """
  *lead, r, t, _, _, _ = q.shape
  lp = prompt_k.shape[-3]
  if spec.window:
    prompt_k, prompt_v = align_right(prompt_k, lengths), align_right(prompt_v, lengths)
    real_prompt = jnp.arange(lp) >= lp - lengths[..., None, None]
  else:
    real_prompt = jnp.arange(lp) < lengths[..., None, None]
  real_prompt = jnp.broadcast_to(real_prompt, (*lead, r, lp))
  real = jnp.concatenate([real_prompt, jnp.ones((*lead, r, t), bool)], axis=-1)
  k, v = prepend(prompt_k, k, -3), prepend(prompt_v, v, -3)
  return sharded(layout, functools.partial(splash, spec), q, k, v, real)


def within_window(spec: AttentionSpec, queries: Array, keys: Array) -> Array:
  """Returns `[..., T, S]`: which keys at `[S]` are in the window of queries at `[..., T]`."""
  return queries[..., None] - keys < spec.window


def align_right(x: Array, lengths: Array) -> Array:
  """Returns x `[..., Lp, K, d]` rotated so that its first `lengths [...]` entries come last."""
  lp = x.shape[-3]
  index = (jnp.arange(lp) + lengths[..., None]) % lp
  return jnp.take_along_axis(x, index[..., None, None], axis=-3)


def prepend(prompt: Array, rows: Array, axis: int) -> Array:
  """Returns keys or values of rows `[..., R, a', b', c']` after their prompt's `[..., a, b, c]`."""
  shape = (*rows.shape[:-3], *prompt.shape[-3:])
  return jnp.concatenate([jnp.broadcast_to(prompt[..., None, :, :, :], shape), rows], axis=axis)


def attend(spec: AttentionSpec, q: Array, k: Array, v: Array, visible: Array) -> Array:
  """Returns softmax attention `[..., T, K, M, d]` with its scores written out.

  Heads come first: a CPU multiplies these layouts fastest.

  Args:
    spec: its scale and soft cap; its window is in `visible`.
    q: `[..., T, K, M, d]`, M query heads for each of K key/value heads.
    k: `[..., K, d, S]`; v: `[..., K, S, d]`.
    visible: `[..., T, S]` bool; a query that sees nothing gets the mean of all values.
  """
  *lead, t, kv, m, d = q.shape
  product = functools.partial(jnp.einsum, precision=precision(q.dtype))
  q = jnp.moveaxis(spec.scaled(q), -4, -2).reshape(*lead, kv, m * t, d)
  s = soft_cap(
    product("...qd,...ds->...qs", q, k, preferred_element_type=jnp.float32), spec.soft_cap
  )
  s = jnp.where(visible[..., None, None, :, :], s.reshape(*lead, kv, m, t, -1), MASKED)
  p = jax.nn.softmax(s, axis=-1).astype(v.dtype).reshape(*lead, kv, m * t, -1)
  out = product("...qs,...sd->...qd", p, v)
  return jnp.moveaxis(out.reshape(*lead, kv, m, t, d), -2, -4)


def keys_values(k: Array, v: Array) -> tuple[Array, Array]:
  """Returns k and v `[..., S, K, d]` as `[..., K, d, S]` and `[..., K, S, d]`."""
  return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)


def fits_flash(layout: Layout, spec: AttentionSpec, q: Array) -> bool:
  """Returns whether cuDNN has a kernel: bfloat16, heads of 8 to 128 in steps of 8, no soft cap."""
  fits = q.dtype == jnp.bfloat16 and q.shape[-1] <= 128 and q.shape[-1] % 8 == 0
  return layout.platform == "gpu" and fits and not spec.soft_cap


def flash(spec: AttentionSpec, q: Array, k: Array, v: Array, visible: Array | None = None) -> Array:
  """Returns cuDNN's flash attention, like q; it is causal without `visible`.

  The mask is data, so that packed rows need no more memory than rectangles: T x S numbers a row,
  shared by all heads, and as many for its gradient, which JAX 0.10 computes and discards. Lengths
  are padded to a multiple of 128, because at 64 more some versions of cuDNN return NaN as a masked
  gradient.

  Args:
    spec: its scale.
    q: `[..., T, K, M, d]`; k, v: `[..., S, K, d]`.
    visible: `[..., T, S]` bool.
  """
  *lead, t, kv, m, d = q.shape
  n = math.prod(lead)
  q, k, v = (pad_to(x.reshape(n, x.shape[len(lead)], -1, d), 1, LANES) for x in (q, k, v))
  if visible is not None:
    # A padded query sees everything: cuDNN fails on a row without keys.
    visible = pad_to(visible.reshape(n, 1, *visible.shape[-2:]), 2, LANES, True)
    visible = pad_to(visible, 3, LANES)
  out = jax.nn.dot_product_attention(
    q, k, v, mask=visible, scale=spec.scale, is_causal=visible is None, implementation="cudnn"
  )
  return out[:, :t].reshape(*lead, t, kv, m, d)


def splash(
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
  real: Array | None = None,
  interpret: bool = False,
) -> Array:
  """Returns JAX's splash attention for TPUs, like q.

  The queries are the last T of the S positions. Each sees the real keys up to its own position,
  within the window; blocks that no query sees are skipped. With `interpret` it runs on any
  platform, slowly.

  Args:
    spec: attention of the layer.
    q: `[..., T, K, M, d]`; k, v: `[..., S, K, d]`.
    real: `[..., S]` bool, the keys that are no padding; None: all.
    interpret: whether Pallas interprets the kernel.
  """
  *lead, t, kv, m, d = q.shape
  n, s = math.prod(lead), k.shape[-3]
  unit = LANES if s <= BLOCKS[0] else BLOCKS[0]  # few large blocks of keys
  q_NxHxTxd = _heads_first(spec.scaled(q), len(lead), LANES)
  k_NxKxSxd, v_NxKxSxd = (_heads_first(x, len(lead), unit) for x in (k, v))
  kernel = _splash_kernel(spec, q_NxHxTxd.shape, k_NxKxSxd.shape, s - t, interpret)
  if real is None:
    out = jax.vmap(kernel)(q_NxHxTxd, k_NxKxSxd, v_NxKxSxd)
  else:
    ids = splash_kernel.SegmentIds(
      q=jnp.ones(q_NxHxTxd.shape[2], jnp.int32),
      kv=pad_to(real.reshape(n, s), 1, unit).astype(jnp.int32),
    )
    # The stubs know the class as holding arrays, not the axes that vmap takes in their place.
    ids_axes = splash_kernel.SegmentIds(q=None, kv=0)  # type: ignore[arg-type]
    out = jax.vmap(kernel, in_axes=(0, 0, 0, ids_axes))(q_NxHxTxd, k_NxKxSxd, v_NxKxSxd, ids)
  return jnp.moveaxis(out[:, :, :t], 2, 1).reshape(*lead, t, kv, m, d)


def _heads_first(x: Array, lead: int, unit: int) -> Array:
  """Returns `[..., T, (K,) M, d]` as `[N, K * M, T, d]`, T padded to a multiple of `unit`."""
  x_NxTxHxd = x.reshape(math.prod(x.shape[:lead]), x.shape[lead], -1, x.shape[-1])
  return pad_to(jnp.moveaxis(x_NxTxHxd, 1, 2), 2, unit)


def _splash_kernel(
  spec: AttentionSpec,
  q_shape: tuple[int, ...],
  k_shape: tuple[int, ...],
  first: int,
  interpret: bool,
) -> Callable[..., Array]:
  """Returns the kernel for q `[H, T, d]`, the first at position `first`, and k, v `[K, S, d]`."""
  shape = (q_shape[2], k_shape[2])
  mask: splash_mask.Mask = splash_mask.CausalMask(shape, offset=first)
  if spec.window:
    mask = splash_mask.LocalMask(shape, window_size=(spec.window - 1, 0), offset=first)
  bq, bkv = (next(b for b in BLOCKS if length % b == 0) for length in shape)
  return splash_kernel.make_splash_mha(
    splash_mask.MultiHeadMask([mask] * q_shape[1]),
    block_sizes=splash_kernel.BlockSizes(
      block_q=bq,
      block_kv=bkv,
      block_kv_compute=bkv,
      block_q_dkv=bq,
      block_kv_dkv=bkv,
      block_kv_dkv_compute=bkv,
      block_q_dq=bq,
      block_kv_dq=bkv,
    ),
    head_shards=1,
    q_seq_shards=1,
    attn_logits_soft_cap=spec.soft_cap or None,
    interpret=interpret,
  )


def pad_to(x: Array, axis: int, unit: int, value: float = 0) -> Array:
  """Returns x, padded at the end of `axis` with `value` to a multiple of `unit`."""
  widths = [(0, -n % unit if i == axis else 0) for i, n in enumerate(x.shape)]
  return jnp.pad(x, widths, constant_values=jnp.asarray(value, x.dtype))


def sharded(
  layout: Layout, kernel: Callable[..., Array], q: Array, k: Array, v: Array, *mask: Array
) -> Array:
  """Returns `kernel(q, k, v, *mask)`, computed on each shard's own batch and heads.

  `mask` is `[..., T, S]` or `[..., S]`. Key/value heads that the mesh does not divide are repeated
  for each query head if it divides those.
  """
  shape, tensor = q.shape, layout.size("heads")
  if k.shape[-2] % tensor and (k.shape[-2] * shape[-2]) % tensor == 0:
    k, v = (jnp.repeat(x, shape[-2], axis=-2) for x in (k, v))
    q = q.reshape(*shape[:-3], -1, 1, shape[-1])
  batch = ("prompt", "sample", None)[: q.ndim - 4]
  q_spec = layout.spec((*batch, None, "heads", None, None), q.shape)
  k_spec = layout.spec((*batch, None, "heads", None), k.shape)
  mask_spec = tuple(layout.spec((*batch, *(None,) * (x.ndim - len(batch))), x.shape) for x in mask)
  # The sampler's prefill is already in a shard_map over prompts and samples; only the other mesh
  # axes are sharded here.
  context = jax.sharding.get_abstract_mesh()
  mesh = layout.mesh if context.empty else context
  run = jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=(q_spec, k_spec, k_spec, *mask_spec),
    out_specs=q_spec,
    axis_names=set(mesh.axis_names) - set(context.manual_axes),
    check_vma=False,
  )
  return run(q, k, v, *mask).reshape(shape)
