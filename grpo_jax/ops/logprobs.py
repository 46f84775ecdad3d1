"""Computes log-probs and entropies of tokens from hidden states, without the whole batch's logits.

The head is chunked along the tokens, never along the vocabulary: only one chunk's logits `[chunk,
V]` exist at a time, forwards and backwards. The backward pass computes them again, from one number
that the forward pass keeps for each token, the log of its normaliser.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.errors import SettingError
from grpo_jax.types import Array


def logprobs_and_entropy(
  hidden: Array,
  unembed: Array,
  targets: Array,
  *,
  temperature: float = 1.0,
  chunk: int,
  soft_cap: float = 0.0,
) -> tuple[Array, Array]:
  """Returns log softmax(z)[target] and the entropy of softmax(z).

  z = cap(hidden @ unembed.T) / temperature, where cap(x) = soft_cap * tanh(x / soft_cap) (Gemma 2,
  arXiv 2408.00118), or x if soft_cap is 0.

  The log-prob is differentiated with respect to `hidden` and `unembed`. With softmax p and
  cotangent g of a token:

      dz = g * (onehot(target) - p) / temperature
      d hidden = dz @ unembed
      d unembed = dz.T @ hidden

  so tokens whose cotangent is zero (padding) add exactly nothing. The entropy's gradient is zero,
  as under `stop_gradient`.

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
    (logprob [...], entropy [...]) float32.
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
    return jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)
  logprob, entropy = _head(
    temperature, chunk, soft_cap, hidden.reshape(-1, hidden.shape[-1]), unembed, targets.ravel()
  )
  return logprob.reshape(shape), entropy.reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _head(
  temperature: float, chunk: int, soft_cap: float, hidden: Array, unembed: Array, targets: Array
):
  return _forward(temperature, chunk, soft_cap, hidden, unembed, targets)[0]


def _forward(temperature, chunk, soft_cap, hidden, unembed, targets):
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
    return None, (target - log_total, log_total - mean, top[..., 0] + log_total)

  _, out = lax.scan(body, None, (_split(hidden, steps), _split(targets, steps)))
  logprob, entropy, lse = (x.ravel()[: targets.size] for x in out)
  return (logprob, entropy), (hidden, unembed, targets, lse)


def _backward(temperature, chunk, soft_cap, kept, cotangents):
  hidden, unembed, targets, lse = kept
  steps = -(-targets.size // chunk)

  def body(d_unembed, inputs):
    h, y, lse, g = inputs
    z, slope = _logits(h, unembed, temperature, soft_cap)
    p = jnp.exp(z - lse[..., None])
    # A comparison, not a scatter: it fuses with the exponential and needs no communication over
    # shards of V.
    hit = lax.broadcasted_iota(y.dtype, z.shape, z.ndim - 1) == y[..., None]
    dz = (jnp.where(hit, 1.0 - p, -p) * (g[..., None] * slope)).astype(unembed.dtype)  # [c, V]
    d_h = lax.dot_general(dz, unembed, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    d_unembed += lax.dot_general(
      dz, h, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    return d_unembed, d_h.astype(hidden.dtype)

  inputs = tuple(_split(x, steps) for x in (hidden, targets, lse, cotangents[0]))
  d_unembed, d_hidden = lax.scan(body, jnp.zeros_like(unembed, jnp.float32), inputs)
  return (
    d_hidden.reshape(-1, hidden.shape[-1])[: targets.size],
    d_unembed.astype(unembed.dtype),
    None,
  )


_head.defvjp(_forward, _backward)


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
