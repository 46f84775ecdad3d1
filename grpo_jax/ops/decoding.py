"""Samples tokens from logits, by temperature, top-k, top-p and min-p, with their log-probs.

S tokens are sampled, each from its own distribution over V tokens, in passes over the vocabulary
that only add or take a maximum. There is no noise for every token: one uniform number for each
distribution inverts the distribution function, first over blocks of the vocabulary, then inside
one. There is no sort: the truncations are thresholds, found by search.

The work is laid out `[V, S]`, as a CPU's fastest head product makes it (docs/performance.md). For a
caller that transposes such a product to `[S, V]` the two transpositions cancel.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from grpo_jax.errors import SettingError
from grpo_jax.types import Array

BLOCK = 64  # tokens of a block: few enough blocks to compare, short enough to search
# blocks with the largest maxima that are searched first: a truncation usually ends in them
CANDIDATES = 64
GUESSES = 12  # interpolations of a threshold, before its bounds are halved instead
SAMPLE = 16  # a threshold is guessed from every SAMPLE-th block
STRIDE = 2**18  # first step away from that guess, in float32 bits (2^23 double a number)


class Truncation(NamedTuple):
  """Settings that cut a distribution before a token is drawn, by the names of `sample`."""

  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0


def sample(
  logits: Array,
  uniforms: Array,
  *,
  temperature: float,
  top_k: int,
  top_p: float,
  min_p: float,
) -> tuple[Array, Array, Array]:
  """Returns a token for each of S distributions, its log-prob, and its log-prob after truncation.

  The distribution is p = softmax(logits / temperature). The truncations follow one another, each on
  the tokens that the one before has kept:

    top_k: the k most probable tokens;
    top_p: of the distribution renormalised on those, the smallest set of most probable tokens whose
      mass is at least top_p (the nucleus of arXiv 1904.09751), the token that crosses it included;
    min_p: tokens at least min_p times as probable as the most probable one (arXiv 2407.01082).

  Tokens whose float32 probability (relative to the largest) equals that of the last token kept are
  kept, too, so that the order of the vocabulary does not matter. At least one token is kept. A
  token whose probability is zero in float32 is never sampled.

  The token is the first, in the order of the vocabulary, at which the sum of the kept probabilities
  exceeds u times their mass. `jax.random.uniform` makes a float32 u of 23 bits, so probabilities
  are rounded, up or down, to multiples of 2^-23 (1.2e-7): of several tokens less probable than
  that, one is drawn in the place of all, and the last ones of the vocabulary never, if they come to
  less than that together.

  Args:
    logits: [S, V], any float dtype; compared and summed in float32. Best the transpose of a `[V,
      S]` product.
    uniforms: [S] float32 in [0, 1).
    temperature: 0 takes the most probable token (the first of equals), with both log-probs at
      temperature 1 and without truncation. Settings are Python numbers; those that truncate nothing
      cost nothing.
    top_k: 0 for none.
    top_p: 1.0 for none.
    min_p: 0.0 for none.

  Returns:
    (token [S] int32; its log-prob [S] float32 under p; its log-prob under the renormalised
    truncation of p, the same number without one).
  """
  check(temperature, top_k, top_p, min_p)
  n, vocab = logits.shape
  block = _block_size(vocab)
  x = logits.astype(jnp.float32).T
  if vocab % block:
    x = jnp.pad(x, ((0, -vocab % block), (0, 0)), constant_values=-jnp.inf)
  x = x.reshape(-1, block, n)  # [blocks, block, S]
  tops = jnp.max(x, axis=1)  # [blocks, S]
  top = jnp.max(tops, axis=0)  # [S]
  if temperature == 0:
    here = jnp.argmax(tops, axis=0)
    token = here * block + jnp.argmax(_take(x, here[None])[0], axis=0)
    logprob = -jnp.log(jnp.sum(jnp.exp(x - top), axis=(0, 1)))
    return token.astype(jnp.int32), logprob, logprob

  def relative(z: Array) -> Array:
    """Returns probabilities relative to the most probable token's."""
    return jnp.exp((z - top) / temperature)

  e = relative(x)
  threshold = _threshold(e, relative(tops), top_k if top_k < vocab else 0, top_p, min_p)
  masses = jnp.sum(e if threshold is None else _keep(e, threshold), axis=1)  # [blocks, S]
  here, rest = _invert(masses, uniforms * jnp.sum(masses, axis=0))
  inside = _take(e, here[None])[0]  # [block, S]
  place, _ = _invert(inside if threshold is None else _keep(inside, threshold), rest)
  weight = (
    jnp.take_along_axis(_take(x, here[None])[0], place[None], axis=0)[0] - top
  ) / temperature
  token = (here * block + place).astype(jnp.int32)
  mass = jnp.sum(masses, axis=0)
  if threshold is None:
    logprob = weight - jnp.log(mass)
    return token, logprob, logprob
  return token, weight - jnp.log(jnp.sum(e, axis=(0, 1))), weight - jnp.log(mass)


def soft_cap(x: Array, bound: float) -> Array:
  """Returns bound * tanh(x / bound) (Gemma 2, arXiv 2408.00118), or x if bound is 0."""
  return bound * jnp.tanh(x / bound) if bound else x


def check(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
  """Refuses settings of `sample` that are out of range."""
  if not temperature >= 0:
    raise SettingError(f"temperature={temperature}: 0 (the most probable token) or above")
  if top_k < 0:
    raise SettingError(f"top_k={top_k}: 0 (off) or a number of tokens")
  if not 0 < top_p <= 1:
    raise SettingError(f"top_p={top_p}: above 0, at most 1 (off)")
  if not 0 <= min_p <= 1:
    raise SettingError(f"min_p={min_p}: from 0 (off) to 1")


def _threshold(e: Array, tops: Array, top_k: int, top_p: float, min_p: float) -> Array | None:
  """Returns the least probability kept, [S], relative to the largest; None without truncation.

  Args:
    e: [blocks, block, S], probabilities relative to the largest.
    tops: [blocks, S], the largest of each block.
    top_k, top_p, min_p: see `sample`.
  """
  threshold = None
  if top_k:
    threshold = _kth(e, tops, top_k)
  if top_p < 1.0:
    kept = jnp.sum(e if threshold is None else _keep(e, threshold), axis=(0, 1))
    threshold = _nucleus(e, tops, kept, top_p, threshold)
  if min_p > 0.0:
    least = jnp.full(e.shape[-1], min_p, jnp.float32)
    threshold = least if threshold is None else jnp.maximum(threshold, min_p)
  return threshold


def _block_size(vocab: int) -> int:
  """Returns a divisor of the vocabulary near BLOCK, which saves padding, or else BLOCK."""
  divisors = [b for b in range(BLOCK // 2, 2 * BLOCK + 1) if vocab % b == 0]
  return min(divisors, key=lambda b: abs(b - BLOCK), default=min(BLOCK, vocab))


def _keep(e: Array, threshold: Array) -> Array:
  """Returns e where it is at least the threshold, 0 elsewhere."""
  return jnp.where(e >= threshold, e, 0.0)


def _take(x: Array, blocks: Array) -> Array:
  """Returns blocks [k, S] of x [blocks, block, S], as [k, block, S]."""
  return jnp.take_along_axis(x, blocks[:, None], axis=0, mode="promise_in_bounds")


def _invert(weights: Array, target: Array) -> tuple[Array, Array]:
  """Returns the first index [S] whose cumulative weight exceeds the target, and the target's rest.

  An index of weight zero is never returned. weights: [n, S]; target and rest: [S].
  """
  sums = jnp.cumsum(weights, axis=0)
  index = lax.broadcasted_iota(jnp.int32, weights.shape, 0)
  real = weights > 0.0
  first = jnp.min(jnp.where(real & (sums > target), index, weights.shape[0]), axis=0)
  last = jnp.max(jnp.where(real, index, 0), axis=0)  # if rounding leaves no sum above the target
  chosen = jnp.minimum(first, last)
  before = jnp.sum(jnp.where(index == chosen - 1, sums, 0.0), axis=0)
  return chosen, target - before


def _candidates(e: Array, tops: Array, blocks: int) -> tuple[Array, Array]:
  """Returns the tokens [blocks * block, S] of the blocks with the largest maxima, and a bound [S].

  Every token of e [all blocks, block, S] above the bound is among them. tops: [all blocks, S], the
  maxima of e.
  """
  best, where = lax.top_k(tops.T, blocks)
  # A minimum, not best[:, -1]: XLA would turn top_k and a slice of it into a full sort.
  return _take(e, where.T).reshape(-1, e.shape[-1]), jnp.min(best, axis=1)


def _kth(e: Array, tops: Array, k: int) -> Array:
  """Returns the k-th largest value [S], which is in one of the k blocks with the largest maxima."""
  values, _ = _candidates(e, tops, min(k, tops.shape[0]))
  return jnp.min(lax.top_k(values.T, k)[0], axis=1)


def _mass(values: Array, threshold: Array) -> Array:
  """Returns the sum [S] of those values [..., S] that are at least the threshold [S]."""
  return jnp.sum(_keep(values, threshold), axis=tuple(range(values.ndim - 1)))


def _nucleus(e: Array, tops: Array, kept: Array, top_p: float, floor: Array | None) -> Array:
  """Returns the largest threshold [S], above `floor`, that keeps at least top_p of the mass `kept`.

  The search starts among the candidates, where the nucleus of a trained model usually ends. If they
  hold too little mass, a sample of the vocabulary gives bounds, which are narrowed over the whole
  vocabulary until few enough values lie between them to be candidates in turn.
  """
  need = top_p * kept
  # Tokens below (1 - p) mass / V together have less than (1 - p) of the mass.
  low = (1.0 - top_p) * kept / (e.shape[0] * e.shape[1])
  low = low if floor is None else jnp.maximum(low, floor)
  one, every = jnp.ones_like(kept), jnp.ones_like(kept, bool)
  if tops.shape[0] <= CANDIDATES:
    return _search(e, need, (low, kept), (one, 0.0), every)[0]

  candidates, bound = _candidates(e, tops, CANDIDATES)
  above = _mass(candidates, bound)
  enough = above >= need
  near = _search(candidates, need, (bound, above), (one, 0.0), enough)[0]

  def far() -> Array:
    some = e[::SAMPLE]
    some = jnp.where((some < bound) & (some >= (0.0 if floor is None else floor)), some, 0.0)
    share = (need - above) / (kept - above)
    all_some = _mass(some, jnp.zeros_like(bound))
    lowest = jnp.minimum(low, bound)
    start, _, _ = _search(
      some, share * all_some, (lowest, all_some), (bound, 0.0), ~enough, few=20.0
    )
    lo, hi, mass_hi = _search(
      e, need, (lowest, kept), (bound, above), ~enough, few=float(CANDIDATES), start=start
    )
    between = jnp.where((e >= lo) & (e <= hi), e, 0.0)
    values, _ = _candidates(between, jnp.max(between, axis=1), CANDIDATES)
    return _search(values, need - mass_hi, (lo, _mass(values, lo)), (hi, 0.0), ~enough)[0]

  return lax.cond(jnp.all(enough), lambda: near, lambda: jnp.where(enough, near, far()))


def _bits(x: Array) -> Array:
  """Returns the bits of float32 numbers as int32."""
  return lax.bitcast_convert_type(x, jnp.int32)


def _floats(x: Array) -> Array:
  """Returns the float32 numbers of these bits."""
  return lax.bitcast_convert_type(x, jnp.float32)


def _search(
  e: Array,
  need: Array,
  low: tuple[Array, Array],
  high: tuple[Array, Array | float],
  active: Array,
  few: float = 1.9,
  start: Array | None = None,
) -> tuple[Array, Array, Array]:
  """Returns bounds of the largest threshold t with a mass of at least `need`.

  The mass of t is the sum of the values of e that are at least t. The search interpolates between
  bounds (the Illinois method), and after GUESSES steps halves them, on the bits of the floats:
  these have the order of the positive floats, and are nearly their logarithms.

  Args:
    e: [..., S] values, not below 0.
    need: [S] the mass to keep.
    low: a threshold that keeps enough, and its mass or an upper bound of it.
    high: a value such that larger thresholds keep too little, and its mass or a lower bound of it.
    active: [S] bool, the distributions to search; the others return low.
    few: the search ends when fewer than this many values can lie between the bounds. The default is
      exact: with one value or none there, or several equal ones, the lower bound is the threshold.
    start: a first guess, from which the search steps outwards until t lies between its bounds.

  Returns:
    (the lower bound, which keeps enough; the upper bound; the mass above it), [S] each. Both bounds
    may be t itself.
  """

  def unfinished(lo, hi, mass_lo, mass_hi):
    return active & (hi - lo > 1) & (mass_lo > need) & (mass_lo - mass_hi >= few * _floats(lo))

  def step(s):
    lo, hi, mass_lo, mass_hi, y_lo, y_hi, side, stride, count = s
    guess = jnp.where(count >= GUESSES, 0.5, y_lo / (y_lo - y_hi))
    t = lo + (guess * (hi - lo).astype(jnp.float32)).astype(jnp.int32)
    if start is not None:
      out = jnp.where(side == 0, _bits(start), jnp.where(side > 0, lo + stride, hi - stride))
      t = jnp.where(stride > 0, out, t)
    t = jnp.clip(t, lo + 1, hi - 1)
    m = _mass(e, _floats(t))
    go, up = unfinished(lo, hi, mass_lo, mass_hi), m >= need
    rise, fall = go & up, go & ~up

    def pick(if_up: Array | int, if_down: Array | int, old: Array) -> Array:
      return jnp.where(rise, if_up, jnp.where(fall, if_down, old))

    turned = ((side > 0) & ~up) | ((side < 0) & up)
    stride = jnp.where(turned, 0, jnp.where(side == 0, stride, 2 * stride))
    # A bound that stays for a second time pulls half as strongly.
    return (
      pick(t, lo, lo),
      pick(hi, t, hi),
      pick(m, mass_lo, mass_lo),
      pick(mass_hi, m, mass_hi),
      pick(m - need, jnp.where(side < 0, 0.5, 1.0) * y_lo, y_lo),
      pick(jnp.where(side > 0, 0.5, 1.0) * y_hi, m - need, y_hi),
      pick(1, -1, side),
      stride,
      count + 1,
    )

  lo, hi = _bits(low[0]), _bits(high[0]) + 1
  mass_high = jnp.broadcast_to(high[1], need.shape)
  stride = jnp.full(need.shape, 0 if start is None else STRIDE, jnp.int32)
  state = (
    lo,
    hi,
    low[1],
    mass_high,
    low[1] - need,
    mass_high - need,
    jnp.zeros_like(lo),
    stride,
    jnp.int32(0),
  )
  lo, hi, _, mass_high, *_ = lax.while_loop(lambda s: jnp.any(unfinished(*s[:4])), step, state)
  return _floats(lo), _floats(hi - 1), mass_high
