"""Computes divergences of two whole distributions over the vocabulary, and their gradients.

With S the student's distribution at a token, T the teacher's, and M = beta T + (1 - beta) S:

    forward          D = KL(T || S)                               dD/dz = S - T
    reverse          D = KL(S || T)                               dD/dz = S (log(S / T) - D)
    jensen_shannon   D = beta KL(T || M) + (1 - beta) KL(S || M)  dD/dz = (1 - beta) S
                                                                    (log(S / M) - KL(S || M))

z are the student's logits; nothing flows to the teacher. The third is that of GKD (Agarwal et al.,
arXiv 2306.13649, section 3.1). For beta near 0, D / beta goes to the forward KL, and for beta near
1, D / (1 - beta) to the reverse KL: D itself goes to 0 at both ends, so they are kinds of their own
and beta lies between them.

With `top_k` = k, the k likeliest tokens of the student or the teacher stay as they are and all
others become one outcome, whose probability is the sum of theirs. Such a D is never above that of
the whole distributions and rises with k to it. Leaving the others out without putting anything in
their place is not offered: KL(S || T) would fall when S puts its probability on them.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from grpo_jax.errors import SettingError
from grpo_jax.types import Array

KINDS = ("forward", "reverse", "jensen_shannon")
OWNERS = ("student", "teacher")
LEAST = -69.0  # log of the least probability of all tokens but the top k: they may have underflowed


@dataclasses.dataclass(frozen=True)
class Divergence:
  """Says what is computed of two distributions."""

  kind: str  # of KINDS
  beta: float = 0.5  # of jensen_shannon, above 0 and below 1
  top_k: int = 0  # 0: every token is an outcome
  top_k_of: str = "student"  # of OWNERS

  def __post_init__(self) -> None:
    if self.kind not in KINDS:
      raise SettingError(f"divergence={self.kind!r}: use one of {', '.join(KINDS)}")
    if not 0 < self.beta < 1:
      raise SettingError(
        f"jensen_shannon_beta={self.beta!r}: use a number above 0 and below 1; at the ends are "
        "divergence='forward' (0) and 'reverse' (1)"
      )
    if self.top_k < 0:
      raise SettingError(
        f"top_k={self.top_k!r}: use 0 (the whole vocabulary) or a number of tokens"
      )
    if self.top_k_of not in OWNERS:
      raise SettingError(f"top_k_of={self.top_k_of!r}: use one of {', '.join(OWNERS)}")


def value(spec: Divergence, log_s: Array, log_t: Array) -> Array:
  """Returns D of each token, [...] float32, never below 0 but by rounding.

  Args:
    spec: what to compute.
    log_s, log_t: log-probs of student and teacher, [..., V] float32.
  """
  return _compute(spec, log_s, log_t)[0]


def gradient(spec: Divergence, log_s: Array, log_t: Array) -> Array:
  """Returns the derivative of D by the student's logits, [..., V]; arguments as for `value`."""
  return _compute(spec, log_s, log_t)[1]


def _compute(spec: Divergence, log_s: Array, log_t: Array) -> tuple[Array, Array]:
  """Returns `value` and `gradient`."""
  tail_s = tail_t = None  # [..., 1]: log-probs of all tokens but the top k, as one outcome
  of_s, of_t = log_s, log_t  # [..., V]: log-probs of the outcome that each token belongs to
  if 0 < spec.top_k < log_s.shape[-1]:
    owner = log_s if spec.top_k_of == "student" else log_t
    # The threshold lies between the k-th and the next, so that rounding cannot drop the k-th.
    # A sum, not a slice: of a part of its results, XLA makes the top k a sort of everything.
    largest = _largest(owner, spec.top_k + 1)
    last_two = jnp.arange(spec.top_k + 1) >= spec.top_k - 1
    least = jnp.sum(jnp.where(last_two, 0.5 * largest, 0.0), axis=-1, keepdims=True)
    rest = owner < least
    tail_s, tail_t = (_log_sum(x, rest) for x in (log_s, log_t))
    of_s, of_t = jnp.where(rest, tail_s, log_s), jnp.where(rest, tail_t, log_t)
    top = ~rest
  else:
    top = jnp.ones_like(log_s, bool)

  def kl(p: Array, q: Array, tail_p: Array | None, tail_q: Array | None) -> Array:
    total = jnp.sum(jnp.where(top, _term(p, q), 0.0), axis=-1, keepdims=True)
    return total if tail_p is None or tail_q is None else total + _term(tail_p, tail_q)

  # by token: the student's probability, and the same as if it were the teacher's outcome
  s = jnp.exp(log_s)
  if spec.kind == "forward":
    d = kl(log_t, log_s, tail_t, tail_s)
    dz = s - jnp.exp(log_s - of_s + of_t)
  elif spec.kind == "reverse":
    d = kl(log_s, log_t, tail_s, tail_t)
    dz = s * (of_s - of_t - d)
  else:
    beta = spec.beta
    mixed = _mix(beta, log_s, log_t)
    tail_m = None if tail_s is None or tail_t is None else _mix(beta, tail_s, tail_t)
    of_student = kl(log_s, mixed, tail_s, tail_m)
    d = beta * kl(log_t, mixed, tail_t, tail_m) + (1.0 - beta) * of_student
    dz = (1.0 - beta) * s * (of_s - _mix(beta, of_s, of_t) - of_student)
  return d[..., 0], dz


def _term(log_p: Array, log_q: Array) -> Array:
  """Returns p log(p / q) - p + q, which is never negative; its sum over all outcomes is KL(p || q).

  Where log p or log q is off by a constant e, the sum is off by about e^2, not by e.
  """
  x, p = log_q - log_p, jnp.exp(log_p)
  near = p * (jnp.expm1(jnp.minimum(x, 1.0)) - x)
  return jnp.where(x < 1.0, near, jnp.exp(log_q) - p - p * x)


def _mix(beta: float, log_s: Array, log_t: Array) -> Array:
  """Returns log M."""
  return jnp.logaddexp(math.log(beta) + log_t, math.log1p(-beta) + log_s)


def _log_sum(log_p: Array, there: Array) -> Array:
  """Returns the log of the sum of p where `there`, [..., 1]."""
  total = jnp.sum(jnp.where(there, jnp.exp(log_p), 0.0), axis=-1, keepdims=True)
  return jnp.log(jnp.maximum(total, math.exp(LEAST)))


def _largest(x: Array, k: int) -> Array:
  """Returns the k largest of x [..., V], [..., k], in falling order.

  In a `jax.shard_map` the vocabulary may be sharded over the axes that are left to the compiler:
  then each shard sends what is largest in it, not all that it has.
  """
  mesh = jax.sharding.get_abstract_mesh()
  axes = tuple(a for a in mesh.axis_names if a not in mesh.manual_axes and mesh.shape[a] > 1)
  shards = math.prod(mesh.shape[a] for a in axes)
  if axes and x.shape[-1] % shards == 0 and k <= x.shape[-1] // shards:
    by_vocabulary = PartitionSpec(*(None,) * (x.ndim - 1), axes)
    x = jax.shard_map(
      lambda x: jax.lax.top_k(x, k)[0],
      mesh=mesh,
      in_specs=by_vocabulary,
      out_specs=by_vocabulary,
      axis_names=set(axes),
      check_vma=False,
    )(x)
  return jax.lax.top_k(x, k)[0]
