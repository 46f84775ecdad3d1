"""Measures how an update moved the probabilities of its own rollouts."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.learning.learn import Trace, compiler_options
from grpo_jax.learning.passes import Setup, frozen_outputs
from grpo_jax.learning.state import MODEL, Trees
from grpo_jax.models.decoder import Params
from grpo_jax.objectives import common
from grpo_jax.ops import masked, surrogate
from grpo_jax.packing.plan import Packing
from grpo_jax.types import Array, Rollouts

SHORT, AT_BOUND, PAST_BOUND, NO_BOUND = 0, 1, 2, 3  # where a token's ratio stands


class Movement(NamedTuple):
  """Tells how an update moved the probabilities of its rollouts."""

  metrics: dict[str, Array]
  before: Array  # [P, G] log-probs of the completions before the update
  after: Array  # [P, G] and after it
  logprobs: Array  # [P, G, L] of the tokens after it, without meaning on padding
  # [P, G, L] the ratio of each token that the objective clips; None for one without a ratio
  ratios: Array | None
  # [P, G, L] int8: SHORT, AT_BOUND or PAST_BOUND, and NO_BOUND for a token without an advantage
  stands: Array | None


def movement(
  setup: Setup,
  params: Trees,
  rollouts: Rollouts,
  trace: Trace,
  packing: Packing,
  base: Params | None = None,
) -> Movement:
  """Returns how the probabilities of the rollouts moved in an update; it takes one forward pass.

  Args:
    setup: of the update.
    params: of the state after it.
    rollouts, packing, base: as `learn` was given them.
    trace: as `learn` returned it.

  Its metrics, which are NaN where nothing has an advantage, are:
    `moved_right_way`: share of completions with an advantage whose probability moved the way of its
    sign. `moved_nats`: mean change of a completion's log-prob towards its advantage, in nats.
    `tokens/short`, `tokens/at_bound`, `tokens/past_bound`: shares of the tokens with an advantage
    whose clipped ratio is before, at or past its bound; only for objectives that clip a ratio.
  """
  logprobs = frozen_outputs(setup.over(base), {MODEL: params[MODEL]}, rollouts, packing).logprobs
  assert trace.logprobs is not None, "a reward model has no probabilities"
  mask = common.sampled_mask(rollouts)
  before, after = (masked.masked_sum(x, mask, axis=2) for x in (trace.logprobs, logprobs))
  sign = jnp.sign(trace.advantages.sum(2))
  acting = (sign != 0).astype(jnp.float32)
  metrics = {
    "moved_right_way": _mean((sign * (after - before) > 0).astype(jnp.float32), acting),
    "moved_nats": _mean(sign * (after - before), acting),
  }
  importance_ratio = setup.objective.objective.importance_ratio
  ratios = stands = None
  if importance_ratio is not None:
    now, old = common.on_mask(logprobs, mask), common.on_mask(trace.logprobs, mask)
    ratio, largest = common.ratio_and_largest(importance_ratio, now, old, mask, setup.objective.cfg)
    reached = surrogate.progress(ratio, largest, trace.advantages, trace.lower, trace.upper)
    tokens = mask * (trace.advantages != 0)  # none of a completion that is left out of the loss
    if setup.objective.objective.bounds is not common.no_bounds:
      for name, there in zip(("short", "at_bound", "past_bound"), reached):
        metrics[f"tokens/{name}"] = _mean(there.astype(jnp.float32), tokens)
    ratios = jnp.broadcast_to(ratio, mask.shape)
    stands = jnp.where(tokens > 0, jnp.argmax(jnp.stack(reached), axis=0), NO_BOUND)
    stands = stands.astype(jnp.int8)
  return Movement(metrics, before, after, logprobs, ratios, stands)


def _mean(x: Array, mask: Array) -> Array:
  """Returns the mean of `x` on the mask; NaN where the mask keeps nothing."""
  return jnp.where(jnp.any(mask > 0), masked.masked_mean(x, mask), jnp.nan)


def make_movement(setup: Setup) -> Callable:
  """Returns `movement` of a setup, jitted."""
  return jax.jit(
    functools.partial(movement, setup), compiler_options=compiler_options(setup.decoder)
  )
