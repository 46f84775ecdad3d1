"""Computes log-probs of tokens, and the entropy and the sum of squares of the distributions that
they come from, without the whole batch's logits.

The head is chunked along the tokens, never along the vocabulary: only one chunk's logits `[chunk,
V]` exist at a time, forwards and backwards. The backward pass computes them again, from three
numbers that the forward pass keeps for each token.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from grpo_jax.errors import SettingError
from grpo_jax.types import Array


class TokenStats(NamedTuple):
  """Holds what the head says of each token, float32 [...]; p is the softmax of its logits."""

  logprobs: Array  # log p of the token itself
  entropy: Array  # -sum of p log p over the vocabulary, in nats
  sum_of_squares: Array  # sum of p^2 over the vocabulary


def token_stats(
  hidden: Array,
  unembed: Array,
  targets: Array,
  *,
  temperature: float = 1.0,
  chunk: int,
  soft_cap: float = 0.0,
) -> TokenStats:
  """Returns log p[target], the entropy of p and the sum of its squares, with p = softmax(z).

  z = cap(hidden @ unembed.T) / temperature, where cap(x) = soft_cap * tanh(x / soft_cap) (Gemma 2,
  arXiv 2408.00118), or x if soft_cap is 0.

  All three are differentiated with respect to `hidden` and `unembed`. With the cotangents g, g_H
  and g_S of a token's log-prob, entropy H and sum of squares S:

      dz = (g (onehot(target) - p) - g_H p (log p + H) + g_S 2 p (p - S)) / temperature
      d hidden = dz @ unembed
      d unembed = dz.T @ hidden

  so tokens whose cotangents are zero (padding) add exactly nothing. What a loss does not read costs
  it nothing.

  Products accumulate in float32 whatever the dtype of the inputs; d unembed is summed over chunks
  in float32; dz is rounded to the dtype of `unembed` for its two products. Temporary memory is a
  small multiple of `chunk * V` floats and does not grow with the number of tokens.

  On a mesh, forward.py calls it in a `jax.shard_map`, so that a chunk is tokens of one device and
  the loop over chunks sends nothing over the axes that shard tokens. If other axes shard the
  vocabulary, only reductions over V cross its shards.

  Args:
    hidden: [..., D] float32 or bfloat16, the state that predicts the target.
    unembed: [V, D], as Hugging Face stores it.
    targets: [...] int32 in [0, V); any valid number on padding.
    temperature: the sampling temperature, above 0.
    chunk: the most tokens whose logits exist at once. At least 256, better 512 if memory allows,
      since every chunk reads and writes d unembed once.
    soft_cap: of the logits, before the temperature; 0 for none.

  Returns:
    TokenStats of [...] float32.
  """
  if not temperature > 0:
    raise SettingError(f"temperature={temperature}: log-probs of a distribution need one above 0")
  if chunk < 1:
    raise SettingError(
      f"chunk={chunk}: the log-prob chunk is a number of tokens, 1 or more (512 is a good one)"
    )
  if not soft_cap >= 0:
    raise SettingError(f"soft_cap={soft_cap}: 0 (none) or a positive bound of the logits")
  if (
    unembed.ndim != 2 or hidden.shape[:-1] != targets.shape or hidden.shape[-1] != unembed.shape[-1]
  ):
    raise ValueError(
      "expected hidden [..., D], unembed [V, D], targets [...]: "
      f"got hidden {hidden.shape}, unembed {unembed.shape}, targets {targets.shape}"
    )
  shape = targets.shape
  if targets.size == 0:
    return TokenStats(*(jnp.zeros(shape, jnp.float32),) * 3)
  stats = _head(
    temperature, chunk, soft_cap, hidden.reshape(-1, hidden.shape[-1]), unembed, targets.ravel()
  )
  return TokenStats(*(x.reshape(shape) for x in stats))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _head(
  temperature: float, chunk: int, soft_cap: float, hidden: Array, unembed: Array, targets: Array
) -> TokenStats:
  return _stats(temperature, chunk, soft_cap, hidden, unembed, targets)[0]


def _forward(temperature, chunk, soft_cap, hidden, unembed, targets):
  hidden, unembed, targets = hidden.value, unembed.value, targets.value  # CustomVJPPrimal
  stats, lse = _stats(temperature, chunk, soft_cap, hidden, unembed, targets)
  return stats, (hidden, unembed, targets, lse, stats.entropy, stats.sum_of_squares)


def _stats(temperature, chunk, soft_cap, hidden, unembed, targets):
  """Returns TokenStats of [N], and the logs of the normalisers [N]."""
  steps = -(-targets.size // chunk)

  def body(_, inputs):
    h, y = inputs  # [c, D], [c]
    z, _ = _logits(h, unembed, temperature, soft_cap)  # [c, V]
    top = jnp.max(z, axis=-1, keepdims=True)
    e = jnp.exp(z - top)
    total = jnp.sum(e, axis=-1)
    mean = jnp.sum(e * (z - top), axis=-1) / total
    target = (jnp.take_along_axis(z, y[..., None], axis=-1) - top)[..., 0]
    log_total = jnp.log(total)
    squares = jnp.sum(e * e, axis=-1) / total**2
    return None, (target - log_total, log_total - mean, squares, top[..., 0] + log_total)

  _, out = lax.scan(body, None, (_split(hidden, steps), _split(targets, steps)))
  *stats, lse = (x.ravel()[: targets.size] for x in out)
  return TokenStats(*stats), lse


def _backward(temperature, chunk, soft_cap, kept, cotangents):
  hidden, unembed, targets, *of_token = kept
  steps = -(-targets.size // chunk)
  # None where the loss does not read it
  cotangents = [None if isinstance(g, SymbolicZero) else g for g in cotangents]

  def body(d_unembed, inputs):
    h, *of_token = inputs
    y, lse, entropy, squares, g, g_entropy, g_squares = jax.tree.map(lambda x: x[:, None], of_token)
    z, slope = _logits(h, unembed, temperature, soft_cap)
    log_p = z - lse
    p = jnp.exp(log_p)
    dz = jnp.zeros_like(z)
    if g is not None:
      # A comparison, not a scatter: it fuses with the exponential and needs no communication over
      # shards of V.
      hit = lax.broadcasted_iota(y.dtype, z.shape, z.ndim - 1) == y
      dz = jnp.where(hit, 1.0 - p, -p) * (g * slope)
    if g_entropy is not None:
      dz -= p * (log_p + entropy) * (g_entropy * slope)
    if g_squares is not None:
      dz += 2.0 * p * (p - squares) * (g_squares * slope)
    dz = dz.astype(unembed.dtype)  # [c, V]
    d_h = lax.dot_general(dz, unembed, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    d_unembed += lax.dot_general(
      dz, h, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    return d_unembed, d_h.astype(hidden.dtype)

  inputs = jax.tree.map(lambda x: _split(x, steps), (hidden, targets, *of_token, *cotangents))
  d_unembed, d_hidden = lax.scan(body, jnp.zeros_like(unembed, jnp.float32), inputs)
  return (
    d_hidden.reshape(-1, hidden.shape[-1])[: targets.size],
    d_unembed.astype(unembed.dtype),
    None,
  )


_head.defvjp(_forward, _backward, symbolic_zeros=True)


def _split(x: Array, steps: int) -> Array:
  """Returns x `[N, ...]` as chunks `[steps, ceil(N / steps), ...]`, with zeros at the end."""
  x = jnp.pad(x, [(0, -x.shape[0] % steps)] + [(0, 0)] * (x.ndim - 1))
  return x.reshape(steps, -1, *x.shape[1:])


def _logits(
  h: Array, unembed: Array, temperature: float, soft_cap: float
) -> tuple[Array, Array | float]:
  """Returns capped and tempered logits [c, V] float32, and their derivative by the plain ones."""
  z = lax.dot_general(h, unembed, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
  slope: Array | float = 1.0 / temperature
  if soft_cap:
    t = jnp.tanh(z / soft_cap)
    z, slope = soft_cap * t, (1.0 - t * t) / temperature
  return z / temperature, slope
