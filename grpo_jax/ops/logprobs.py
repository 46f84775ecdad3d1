"""Computes log-probs of tokens, and the entropy and the sum of squares of the distributions that
they come from, and how far those are from a teacher's, without the whole batch's logits.

The head is chunked along the tokens, never along the vocabulary: only one chunk's logits `[chunk,
V]` exist at a time (and the teacher's, if there is one), forwards and backwards. The backward pass
computes them again, from three numbers that the forward pass keeps for each token.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from grpo_jax.errors import SettingError
from grpo_jax.ops import distillation
from grpo_jax.ops.distillation import Divergence
from grpo_jax.ops.precision import outer_sum, precision
from grpo_jax.types import Array


class TokenStats(NamedTuple):
  """Holds what the head says of each token, float32 [...]; p is the softmax of its logits."""

  logprobs: Array  # log p of the token itself
  entropy: Array  # -sum of p log p over the vocabulary, in nats
  sum_of_squares: Array  # sum of p^2 over the vocabulary
  divergence: Array | None = None  # of p and the teacher's distribution, in nats


class TeacherHead(NamedTuple):
  """Holds what a teacher's logits are made of; it has no gradient."""

  hidden: Array  # [..., D], the states that predict the same targets
  unembed: Array  # [V, D]; D may be another than the student's
  soft_cap: float = 0.0  # of its logits


def token_stats(
  hidden: Array,
  unembed: Array,
  targets: Array,
  *,
  temperature: float = 1.0,
  chunk: int,
  soft_cap: float = 0.0,
  teacher: TeacherHead | None = None,
  divergence: Divergence | None = None,
  count: Array | None = None,
) -> TokenStats:
  """Returns log p[target], the entropy of p and the sum of its squares, with p = softmax(z).

  With a teacher also the divergence of p and its distribution, at the same temperature.

  z = cap(hidden @ unembed.T) / temperature, where cap(x) = soft_cap * tanh(x / soft_cap) (Gemma 2,
  arXiv 2408.00118), or x if soft_cap is 0.

  All are differentiated with respect to `hidden` and `unembed`. With the cotangents g, g_H, g_S and
  g_D of a token's log-prob, entropy H, sum of squares S and divergence D:

      dz = (g (onehot(target) - p) - g_H p (log p + H) + g_S 2 p (p - S) + g_D dD/dz) / temperature
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
    teacher: whose distributions p is compared with; None: `divergence` of the result is None.
    divergence: how they are compared; given with a teacher.
    count: [] int32; where there are several chunks, those that begin after so many tokens are left
      out. None: none is.

  Returns:
    TokenStats of [...] float32, 0 in the chunks that are left out.
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
  if teacher is not None and (
    teacher.hidden.shape[:-1] != targets.shape
    or teacher.unembed.shape != (unembed.shape[0], teacher.hidden.shape[-1])
  ):
    raise ValueError(
      f"expected of the teacher hidden [{targets.shape}, D], unembed [{unembed.shape[0]}, D]: "
      f"got hidden {teacher.hidden.shape}, unembed {teacher.unembed.shape}"
    )
  shape = targets.shape
  if targets.size == 0:
    return TokenStats(*(jnp.zeros(shape, jnp.float32),) * (3 if teacher is None else 4))
  how = _How(temperature, chunk, soft_cap, divergence, teacher.soft_cap if teacher else 0.0)
  its = None  # the teacher's arrays
  if teacher is not None:
    its = teacher.hidden.reshape(targets.size, -1), teacher.unembed
  stats = _head(how, hidden.reshape(targets.size, -1), unembed, targets.ravel(), its, count)
  return jax.tree.map(lambda x: x.reshape(shape), stats)


class _How(NamedTuple):
  temperature: float
  chunk: int
  soft_cap: float
  divergence: Divergence | None
  teacher_cap: float


Teacher = tuple[Array, Array] | None  # hidden [N, D], unembed [V, D]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _head(
  how: _How,
  hidden: Array,
  unembed: Array,
  targets: Array,
  teacher: Teacher,
  count: Array | None,
) -> TokenStats:
  return _stats(how, hidden, unembed, targets, teacher, count)[0]


def _forward(how, *arguments):
  arguments = jax.tree.map(lambda x: x.value, arguments)  # CustomVJPPrimal
  stats, lse = _stats(how, *arguments)
  return stats, (*arguments, lse, stats.entropy, stats.sum_of_squares)


def _stats(how, hidden, unembed, targets, teacher, count):
  """Returns TokenStats of [N], and the logs of the normalisers [N]."""
  steps = -(-targets.size // how.chunk)

  def body(_, inputs):
    h, y, h_t = inputs  # [c, D], [c], [c, D] or None
    z, _ = _logits(how, how.soft_cap, h, unembed)  # [c, V]
    top = jnp.max(z, axis=-1, keepdims=True)
    e = jnp.exp(z - top)
    total = jnp.sum(e, axis=-1)
    mean = jnp.sum(e * (z - top), axis=-1) / total
    target = (jnp.take_along_axis(z, y[..., None], axis=-1) - top)[..., 0]
    log_total = jnp.log(total)
    squares = jnp.sum(e * e, axis=-1) / total**2
    d = None
    if teacher is not None:
      log_p = z - top - log_total[..., None]
      d = distillation.value(how.divergence, log_p, _log_probs(how, h_t, teacher[1]))
    return None, (target - log_total, log_total - mean, squares, d, top[..., 0] + log_total)

  inputs = (hidden, targets, None if teacher is None else teacher[0])
  _, out = _scan(body, None, jax.tree.map(lambda x: _split(x, steps), inputs), count)
  *stats, lse = jax.tree.map(lambda x: x.ravel()[: targets.size], out)
  return TokenStats(*stats), lse


def _backward(how, kept, cotangents):
  hidden, unembed, targets, teacher, count, *of_token = kept
  steps = -(-targets.size // how.chunk)
  # None where the loss does not read it
  cotangents = [None if isinstance(g, SymbolicZero) else g for g in cotangents]

  def body(d_unembed, inputs):
    h, h_t, *of_token = inputs
    y, lse, entropy, squares, g, g_entropy, g_squares, g_divergence = jax.tree.map(
      lambda x: x[:, None], of_token
    )
    z, slope = _logits(how, how.soft_cap, h, unembed)
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
    if g_divergence is not None:
      log_t = _log_probs(how, h_t, teacher[1])
      dz += distillation.gradient(how.divergence, log_p, log_t) * (g_divergence * slope)
    dz = dz.astype(unembed.dtype)  # [c, V]
    d_h = _product(dz, unembed, 1, 0)
    d_unembed += outer_sum(dz, h, jnp.float32)
    return d_unembed, d_h.astype(hidden.dtype)

  states = hidden, None if teacher is None else teacher[0]
  inputs = jax.tree.map(lambda x: _split(x, steps), (*states, targets, *of_token, *cotangents))
  d_unembed, d_hidden = _scan(body, jnp.zeros_like(unembed, jnp.float32), inputs, count)
  return (
    d_hidden.reshape(-1, hidden.shape[-1])[: targets.size],
    d_unembed.astype(unembed.dtype),
    None,
    None,
    None,
  )


_head.defvjp(_forward, _backward, symbolic_zeros=True)


def _scan(body, carry, inputs, count):
  """Returns what `lax.scan` does, over the chunks of the first `count` tokens; others give 0.

  Args:
    body: of `lax.scan`.
    carry: at the start.
    inputs: arrays `[steps, c, ...]`.
    count: `[]` int32; None: all.
  """
  steps, chunk = jax.tree.leaves(inputs)[0].shape[:2]
  if count is None or steps == 1:
    return lax.scan(body, carry, inputs)

  def at(i):
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), inputs)

  def step(i, state):
    carry, out = body(state[0], at(i))
    return carry, jax.tree.map(
      lambda x, y: lax.dynamic_update_index_in_dim(x, y, i, 0), state[1], out
    )

  _, out = jax.eval_shape(body, carry, at(0))
  zeros = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), out)
  return lax.fori_loop(0, -(-count // chunk), step, (carry, zeros))


def _split(x: Array, steps: int) -> Array:
  """Returns x `[N, ...]` as chunks `[steps, ceil(N / steps), ...]`, with zeros at the end."""
  x = jnp.pad(x, [(0, -x.shape[0] % steps)] + [(0, 0)] * (x.ndim - 1))
  return x.reshape(steps, -1, *x.shape[1:])


def _logits(how: _How, cap: float, h: Array, unembed: Array) -> tuple[Array, Array | float]:
  """Returns capped and tempered logits [c, V] float32, and their derivative by the plain ones."""
  z = _product(h, unembed, 1, 1)
  slope: Array | float = 1.0 / how.temperature
  if cap:
    t = jnp.tanh(z / cap)
    z, slope = cap * t, (1.0 - t * t) / how.temperature
  return z / how.temperature, slope


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
  """Returns the product of two matrices over an axis of each, float32."""
  return lax.dot_general(
    a,
    b,
    (((a_axis,), (b_axis,)), ((), ())),
    precision=precision(a.dtype),
    preferred_element_type=jnp.float32,
  )


def _log_probs(how: _How, h: Array, unembed: Array) -> Array:
  """Returns the teacher's log-probs [c, V] float32 of a chunk of its states."""
  return jax.nn.log_softmax(_logits(how, how.teacher_cap, h, unembed)[0], axis=-1)
