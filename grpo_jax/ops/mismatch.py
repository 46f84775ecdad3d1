"""Weighs tokens whose sampler was not quite the policy that learns, or leaves them out.

d = log pi_old - log mu of each sampled token, [P, G, L], where mu is the sampler. `weight` and
`kept` take d for a whole completion at once, too:

    token       d itself                                [P, G, L]
    geometric   its mean over the completion            [P, G, 1]
    sequence    its sum over the completion             [P, G, 1]

exp(sum d) is the importance weight of a completion. exp(mean d) is not, although some systems call
it so: it is the |o|-th root of that. Nothing here has a gradient, and no denominator of a loss
changes with what is left out.

    TIS            weight token or sequence, at most 2 (Yao et al., "Your Efficient RL Framework
                   Secretly Brings You Off-Policy RL Training", 2025)
    IcePop         weight token, and tokens whose ratio is within [0.5, 5] (arXiv 2510.18855)
    MIS            weight sequence, and completions whose product is at most 3
    geometric mask completions whose geometric mean is within [0.999, 1.001]
    TRM            completions whose mean or largest k3 is at most a bound (arXiv 2512.23075)
    DeepSeek-V3.2  completions with A < 0 whose geometric mean of pi / mu is at least e^-delta
                   (arXiv 2512.02556)
    VACO           tokens that A moves further from mu, in completions whose mean |pi_old / mu - 1|
                   is above a bound (arXiv 2603.01365, whose mean is over the batch; that over a
                   completion is open-instruct's)
"""

import jax
import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.ops import divergences, masked, shapes, surrogate
from grpo_jax.types import Array

WEIGHTS = ("none", "token", "geometric", "sequence")
LEVELS = ("all", "token", "geometric", "sequence", "max", "mean")
STATISTICS = ("ratio", "tv", "k2", "k3")
CONDITIONS = ("always", "negative", "onwards")


def weight(log_ratio: Array, mask: Array, level: str, low: float, high: float) -> Array:
  """Returns pi_old / mu clipped to [low, high], [P, G, L] or, of a whole completion, [P, G, 1].

  Args:
    log_ratio: d, [P, G, L]; anything off the mask.
    mask: [P, G, L].
    level: of WEIGHTS; "none" gives 1 everywhere.
    low: the least weight.
    high: the largest weight; 0: no bound.
  """
  shapes.assert_same(log_ratio, mask)
  _check("mismatch", level, WEIGHTS)
  if level == "none":
    return jnp.ones_like(mask)
  w = surrogate.exp_clamped(_of_completion(log_ratio, mask, level))
  return jax.lax.stop_gradient(jnp.clip(w, low, high or jnp.inf))


def kept(log_ratio: Array, mask: Array, level: str, by: str, low: float, high: float) -> Array:
  """Returns 1 where a statistic of d is within [low, high], else 0; shapes as of `weight`.

  The statistic is the ratio e^d, tv = |e^d - 1|, k2 = d^2 / 2 or k3 = e^d - 1 - d. Under
  "geometric" and "sequence" it is that of the completion's own d; "max" and "mean" are the largest
  and the mean of the tokens' statistics, [P, G, 1].

  Args:
    log_ratio: d, [P, G, L]; anything off the mask.
    mask: [P, G, L].
    level: of LEVELS; "all" keeps everything.
    by: of STATISTICS.
    low: the least value that is kept.
    high: the largest; 0: no bound.
  """
  shapes.assert_same(log_ratio, mask)
  _check("keep", level, LEVELS)
  _check("keep_by", by, STATISTICS)
  if level == "all":
    return jnp.ones_like(mask)
  if level in ("max", "mean"):
    x = _statistic(jnp.where(mask > 0, log_ratio, 0.0), by)
    if level == "mean":
      x = masked.masked_mean(x, mask, axis=-1, keepdims=True)
    else:  # statistics are not negative
      x = jnp.max(jnp.where(mask > 0, x, 0.0), axis=-1, keepdims=True)
  else:
    x = _statistic(_of_completion(log_ratio, mask, level), by)
  inside = (x >= low) & (x <= (high or jnp.inf))
  return jax.lax.stop_gradient(inside.astype(mask.dtype))


def may_go(log_ratio: Array, advantages: Array, condition: str) -> Array:
  """Returns which tokens may be left out, [P, G, L] bool.

  Args:
    log_ratio: d, [P, G, L].
    advantages: [P, G, L].
    condition: of CONDITIONS: "always" (all), "negative" (A < 0), "onwards" (d A > 0).
  """
  shapes.assert_same(log_ratio, advantages)
  _check("keep_condition", condition, CONDITIONS)
  if condition == "negative":
    return advantages < 0
  if condition == "onwards":
    return log_ratio * advantages > 0
  return jnp.ones(advantages.shape, bool)


def _of_completion(log_ratio: Array, mask: Array, level: str) -> Array:
  """Returns d of the tokens, 0 off the mask, or its mean or sum over each completion."""
  if level == "token":
    return jnp.where(mask > 0, log_ratio, 0.0)
  reduce = masked.masked_mean if level == "geometric" else masked.masked_sum
  return reduce(log_ratio, mask, axis=-1, keepdims=True)


def _statistic(log_ratio: Array, by: str) -> Array:
  if by == "ratio":
    return surrogate.exp_clamped(log_ratio)
  if by == "tv":
    return jnp.abs(surrogate.exp_clamped(log_ratio) - 1.0)
  zero = jnp.zeros_like(log_ratio)  # mu is the policy that sampled: k(mu, pi_old)
  return divergences.kl_estimate(zero, log_ratio, by)


def _check(setting: str, value: str, choices: tuple[str, ...]) -> None:
  if value not in choices:
    raise SettingError(f"{setting}={value!r}: use one of {', '.join(choices)}")
