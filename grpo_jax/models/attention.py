"""Softmax attention of prompts and of completion rows: what sees what, and the kernel of the platform.

    cpu   scores written out (`attend`)
    gpu   cuDNN's flash attention (`flash`)
    tpu   splash attention (`splash`)

The kernels hold a block of scores at a time; written out they are T x S numbers for every head and row. On each
platform the kernels run shard by shard: batch and heads are cut as the activations are, nothing is exchanged.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from grpo_jax.sharding import Layout
from grpo_jax.types import Array

MASKED = -1e30  # score of what must not be attended to; finite, so that a row without keys stays finite
LANES = 128  # of a TPU: splash attention takes sequences in multiples of it
BLOCKS = (512, 384, 256, 128)  # of queries, of keys


def causal_attention(layout: Layout, q: Array, k: Array, v: Array) -> Array:
  """Causal self-attention: q `[..., T, K, M, d]`, k and v `[..., T, K, d]`. Right padding is seen by itself alone."""
  *lead, t, _, _, _ = q.shape
  if layout.platform == "tpu":
    return sharded(layout, splash, q, k, v, jnp.ones((*lead, t), bool))
  visible = jnp.broadcast_to(jnp.tril(jnp.ones((t, t), bool)), (*lead, t, t))
  if fits_flash(layout, q):
    return sharded(layout, flash, q, k, v, visible)
  return attend(q, *keys_values(k, v), visible)


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
  of_prompt = jnp.arange(prompt_k.shape[-3]) < lengths[..., None, None, None]
  if layout.platform == "tpu":
    of_prompt = jnp.broadcast_to(of_prompt[..., 0, :], (*lead, r, of_prompt.shape[-1]))
    real = jnp.concatenate([of_prompt, jnp.ones((*lead, r, t), bool)], axis=-1)
    join = lambda prompt, own: jnp.concatenate([tile(prompt), own], axis=-3)
    return sharded(layout, splash, q, join(prompt_k, k), join(prompt_v, v), real)
  of_own = jnp.tril(jnp.ones((t, t), bool)) & (segments[..., :, None] == segments[..., None, :])
  visible = jnp.concatenate([jnp.broadcast_to(of_prompt, (*lead, r, t, of_prompt.shape[-1])), of_own], axis=-1)
  if fits_flash(layout, q):
    join = lambda prompt, own: jnp.concatenate([tile(prompt), own], axis=-3)
    return sharded(layout, flash, q, join(prompt_k, k), join(prompt_v, v), visible)
  own, prompt = keys_values(k, v), keys_values(prompt_k, prompt_v)
  k_all = jnp.concatenate([tile(prompt[0]), own[0]], axis=-1)
  v_all = jnp.concatenate([tile(prompt[1]), own[1]], axis=-2)
  return attend(q, k_all, v_all, visible)


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


def flash(q: Array, k: Array, v: Array, visible: Array) -> Array:
  """cuDNN's flash attention: q `[..., T, K, M, d]`, k and v `[..., S, K, d]`, visible `[..., T, S]` -> like q.

  The mask is data, so that packed rows need no more than rectangles do. cuDNN wants even T and S for the gradient.
  """
  *lead, t, kv, m, d = q.shape
  n = math.prod(lead)
  q, k, v = (even(x.reshape(n, x.shape[len(lead)], -1, d), 1) for x in (q, k, v))
  visible = even(even(visible.reshape(n, 1, *visible.shape[-2:]), 2), 3)
  out = jax.nn.dot_product_attention(q, k, v, mask=visible, implementation="cudnn")
  return out[:, :t].reshape(*lead, t, kv, m, d)


def even(x: Array, axis: int, unit: int = 2) -> Array:
  """x with zeros (False) behind `axis`, to a multiple of `unit`."""
  return jnp.pad(x, [(0, -n % unit if i == axis else 0) for i, n in enumerate(x.shape)])


def splash(q: Array, k: Array, v: Array, real: Array, interpret: bool = False) -> Array:
  """JAX's splash attention for TPUs: q `[..., T, K, M, d]`, k and v `[..., S, K, d]`, real `[..., S]` -> like q.

  The queries are the last T of the S positions, and each sees the real keys up to its own position. Blocks that
  nobody sees are skipped. With `interpret` it runs anywhere, slowly.
  """
  *lead, t, kv, m, d = q.shape
  n, s = math.prod(lead), k.shape[-3]
  heads_first = lambda x: even(jnp.moveaxis(x.reshape(n, x.shape[len(lead)], -1, d), 1, 2), 2, LANES)
  q, k, v = heads_first(q * d**-0.5), heads_first(k), heads_first(v)
  real = even(real.reshape(n, s), 1, LANES)
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
  segments = splash_kernel.SegmentIds(q=jnp.ones((n, q.shape[2]), jnp.int32), kv=real.astype(jnp.int32))
  out = jax.vmap(kernel)(q, k, v, segment_ids=segments)
  return jnp.moveaxis(out[:, :, :t], 2, 1).reshape(*lead, t, kv, m, d)


def sharded(layout: Layout, kernel: Callable, q: Array, k: Array, v: Array, mask: Array) -> Array:
  """`kernel(q, k, v, mask)` on each shard's own batch and heads; `mask` is `[..., T, S]` or `[..., S]`.

  Key/value heads that do not divide are on every shard, and each then has its part of their query heads.
  """
  *lead, _, kv, m, d = q.shape
  batch = ("prompt", "sample", None)[: len(lead)]
  own = "heads" if kv % layout.size("kv_heads") else None
  of_q = layout.spec((*batch, None, "kv_heads", own, None), q.shape)
  of_k = layout.spec((*batch, None, "kv_heads", None), k.shape)
  of_mask = layout.spec((*batch, *(None,) * (mask.ndim - len(lead))), mask.shape)
  run = jax.shard_map(kernel, mesh=layout.mesh, in_specs=(of_q, of_k, of_k, of_mask), out_specs=of_q, check_vma=False)
  return run(q, k, v, mask)
