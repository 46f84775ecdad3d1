"""Softmax attention of prompts and of completion rows: what sees what, and the kernel of the platform.

    cpu   scores written out (`attend`)
    gpu   cuDNN's flash attention (`flash`)
    tpu   splash attention (`splash`)

The kernels hold a block of scores at a time; written out they are T x S numbers for every head and row. They run shard
by shard: batch and heads are cut as the activations are, nothing is exchanged.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from grpo_jax.sharding import Layout
from grpo_jax.types import Array

MASKED = -1e30  # score of what must not be attended to; finite, so that a row without keys stays finite
LANES = 128  # kernels are given sequences in multiples of it
BLOCKS = (512, 384, 256, 128)  # of queries, of keys: the first that divides


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
  """What the attention of one layer computes; the learner's rows and the sampler's slots both read it."""

  window: int = 0  # a token sees the last so many tokens, itself included; 0: all before it
  soft_cap: float = 0.0  # scores become soft_cap * tanh(scores / soft_cap); 0: they stay as they are
  scale: float | None = None  # of queries; None: head_dim ** -0.5


def causal_attention(layout: Layout, q: Array, k: Array, v: Array) -> Array:
  """Causal self-attention: q `[..., T, K, M, d]`, k and v `[..., T, K, d]`. Right padding is seen by itself alone."""
  if layout.platform == "tpu":
    return sharded(layout, splash, q, k, v)
  if fits_flash(layout, q):
    return sharded(layout, flash, q, k, v)
  *lead, t, _, _, _ = q.shape
  return attend(q, *keys_values(k, v), jnp.broadcast_to(jnp.tril(jnp.ones((t, t), bool)), (*lead, t, t)))


def group_attention(
  layout: Layout, q: Array, k: Array, v: Array, prompt_k: Array, prompt_v: Array, lengths: Array, segments: Array
) -> Array:
  """Completion rows attend to their prompt's keys, which the group shares, and causally to themselves.

  Args:
    layout: its platform chooses the kernel.
    q: `[..., R, T, K, M, d]`; k, v: `[..., R, T, K, d]`.
    prompt_k, prompt_v: `[..., Lp, K, d]`, computed once for the group.
    lengths: `[...]` prompt lengths.
    segments: `[..., R, T]`; a token sees its own segment only. On a TPU a row holds one completion
      (`rollouts.pack` sees to it), and segments are not looked at.

  Returns:
    `[..., R, T, K, M, d]`. One softmax over the prompt's keys and the row's own.
  """
  *lead, r, t = segments.shape
  tile = lambda x: jnp.broadcast_to(x[..., None, :, :, :], (*lead, r, *x.shape[-3:]))
  join = lambda prompt, own, axis=-3: jnp.concatenate([tile(prompt), own], axis=axis)
  of_prompt = jnp.arange(prompt_k.shape[-3]) < lengths[..., None, None, None]
  if layout.platform == "tpu":
    of_prompt = jnp.broadcast_to(of_prompt[..., 0, :], (*lead, r, of_prompt.shape[-1]))
    real = jnp.concatenate([of_prompt, jnp.ones((*lead, r, t), bool)], axis=-1)
    return sharded(layout, splash, q, join(prompt_k, k), join(prompt_v, v), real)
  of_own = jnp.tril(jnp.ones((t, t), bool)) & (segments[..., :, None] == segments[..., None, :])
  visible = jnp.concatenate([jnp.broadcast_to(of_prompt, (*lead, r, t, of_prompt.shape[-1])), of_own], axis=-1)
  if fits_flash(layout, q):
    return sharded(layout, flash, q, join(prompt_k, k), join(prompt_v, v), visible)
  own, prompt = keys_values(k, v), keys_values(prompt_k, prompt_v)
  return attend(q, join(prompt[0], own[0], -1), join(prompt[1], own[1], -2), visible)


def attend(q: Array, k: Array, v: Array, visible: Array) -> Array:
  """Softmax attention, heads first: the layouts that a CPU multiplies fastest.

  Args:
    q: `[..., T, K, M, d]`, M query heads for each of K key/value heads.
    k: `[..., K, d, S]`; v: `[..., K, S, d]`.
    visible: `[..., T, S]` bool; a query that sees nothing gets the mean of all values.

  Returns:
    `[..., T, K, M, d]`.
  """
  *lead, t, kv, m, d = q.shape
  q = jnp.moveaxis(q * (d**-0.5), -4, -2).reshape(*lead, kv, m * t, d)
  s = jnp.einsum("...qd,...ds->...qs", q, k, preferred_element_type=jnp.float32)
  s = jnp.where(visible[..., None, None, :, :], s.reshape(*lead, kv, m, t, -1), MASKED)
  p = jax.nn.softmax(s, axis=-1).astype(v.dtype).reshape(*lead, kv, m * t, -1)
  out = jnp.einsum("...qs,...sd->...qd", p, v)
  return jnp.moveaxis(out.reshape(*lead, kv, m, t, d), -2, -4)


def keys_values(k: Array, v: Array) -> tuple[Array, Array]:
  """k and v `[..., S, K, d]` -> `[..., K, d, S]` and `[..., K, S, d]`."""
  return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)


def fits_flash(layout: Layout, q: Array) -> bool:
  """Whether cuDNN has a kernel for it: 16-bit numbers, heads of at most 128 in steps of 8."""
  return layout.platform == "gpu" and q.dtype == jnp.bfloat16 and q.shape[-1] <= 128 and q.shape[-1] % 8 == 0


def flash(q: Array, k: Array, v: Array, visible: Array | None = None) -> Array:
  """cuDNN's flash attention: q `[..., T, K, M, d]`, k and v `[..., S, K, d]`, visible `[..., T, S]` -> like q.

  Causal without `visible`. The mask is data, so that packed rows need no more than rectangles do: T x S numbers a row,
  and as many for a gradient of it that JAX 0.10 computes and throws away; no head has its own. Lengths go up to a
  multiple of 128: at 64 more, some versions of cuDNN give a masked gradient that is not a number.
  """
  *lead, t, kv, m, d = q.shape
  n = math.prod(lead)
  q, k, v = (pad_to(x.reshape(n, x.shape[len(lead)], -1, d), 1, LANES) for x in (q, k, v))
  if visible is not None:
    visible = pad_to(visible.reshape(n, 1, *visible.shape[-2:]), 2, LANES, True)  # a row that sees nothing is no good
    visible = pad_to(visible, 3, LANES)
  out = jax.nn.dot_product_attention(q, k, v, mask=visible, is_causal=visible is None, implementation="cudnn")
  return out[:, :t].reshape(*lead, t, kv, m, d)


def splash(q: Array, k: Array, v: Array, real: Array | None = None, interpret: bool = False) -> Array:
  """JAX's splash attention for TPUs: q `[..., T, K, M, d]`, k and v `[..., S, K, d]`, real `[..., S]` -> like q.

  The queries are the last T of the S positions, and each sees the (real) keys up to its own position. Blocks that
  nobody sees are skipped. With `interpret` it runs anywhere, slowly.
  """
  *lead, t, kv, m, d = q.shape
  n, s = math.prod(lead), k.shape[-3]
  unit = LANES if s <= BLOCKS[0] else BLOCKS[0]  # of keys, few large blocks
  heads_first = lambda x, unit: pad_to(jnp.moveaxis(x.reshape(n, x.shape[len(lead)], -1, d), 1, 2), 2, unit)
  q, k, v = heads_first(q * d**-0.5, LANES), heads_first(k, unit), heads_first(v, unit)
  mask = splash_mask.CausalMask((q.shape[2], k.shape[2]), offset=s - t)
  bq, bkv = (next(b for b in BLOCKS if length % b == 0) for length in (q.shape[2], k.shape[2]))
  kernel = splash_kernel.make_splash_mha(
    splash_mask.MultiHeadMask([mask] * (kv * m)),
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
    interpret=interpret,
  )
  if real is None:
    out = jax.vmap(kernel)(q, k, v)
  else:
    of_q = jnp.ones(q.shape[2], jnp.int32)
    of_k = pad_to(real.reshape(n, s), 1, unit).astype(jnp.int32)
    row = lambda q, k, v, of_k: kernel(q, k, v, segment_ids=splash_kernel.SegmentIds(q=of_q, kv=of_k))
    out = jax.vmap(row)(q, k, v, of_k)
  return jnp.moveaxis(out[:, :, :t], 2, 1).reshape(*lead, t, kv, m, d)


def pad_to(x: Array, axis: int, unit: int, value: float = 0) -> Array:
  """x, filled up behind `axis` to a multiple of `unit`."""
  widths = [(0, -n % unit if i == axis else 0) for i, n in enumerate(x.shape)]
  return jnp.pad(x, widths, constant_values=jnp.asarray(value, x.dtype))


def sharded(layout: Layout, kernel: Callable, q: Array, k: Array, v: Array, *mask: Array) -> Array:
  """`kernel(q, k, v, *mask)` on each shard's own batch and heads; `mask` is `[..., T, S]` or `[..., S]`.

  Key/value heads that do not divide are repeated for each query head where those do.
  """
  shape, tensor = q.shape, layout.size("heads")
  if k.shape[-2] % tensor and (k.shape[-2] * shape[-2]) % tensor == 0:
    k, v = (jnp.repeat(x, shape[-2], axis=-2) for x in (k, v))
    q = q.reshape(*shape[:-3], -1, 1, shape[-1])
  batch = ("prompt", "sample", None)[: q.ndim - 4]
  of_q = layout.spec((*batch, None, "heads", None, None), q.shape)
  of_k = layout.spec((*batch, None, "heads", None), k.shape)
  of_mask = tuple(layout.spec((*batch, *(None,) * (x.ndim - len(batch))), x.shape) for x in mask)
  # The sampler's prefill is inside a shard_map over prompts and samples; the axes that are left there are cut here.
  context = jax.sharding.get_abstract_mesh()
  mesh = layout.mesh if context.empty else context
  run = jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=(of_q, of_k, of_k, *of_mask),
    out_specs=of_q,
    axis_names=set(mesh.axis_names) - set(context.manual_axes),
    check_vma=False,
  )
  return run(q, k, v, *mask).reshape(shape)
