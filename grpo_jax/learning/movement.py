"""Measures how an update moved the probabilities of its own rollouts."""

import functools
from collections.abc import Callable

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


def movement(
  setup: Setup,
  params: Trees,
  rollouts: Rollouts,
  trace: Trace,
  packing: Packing,
  base: Params | None = None,
) -> tuple[dict[str, Array], Array, Array]:
  """Returns how the probabilities of the rollouts moved in an update; it takes one forward pass.

  Args:
    setup: of the update.
    params: of the state after it.
    rollouts, packing, base: as `learn` was given them.
    trace: as `learn` returned it.

  Returns:
    Metrics, and the log-probs of the completions `[P, G]` before and after the update.
    `moved_right_way`: share of completions with an advantage whose probability moved the way of its
    sign. `moved_nats`: mean change of a completion's log-prob towards its advantage, in nats.
    `tokens/short`, `tokens/at_bound`, `tokens/past_bound`: shares of the tokens with an advantage
    whose clipped ratio is before, at or past its bound; only for objectives with a ratio.
  """
  logprobs = frozen_outputs(setup.over(base), {MODEL: params[MODEL]}, rollouts, packing).logprobs
  assert trace.logprobs is not None, "a reward model has no probabilities"
  mask = common.sampled_mask(rollouts)
  before, after = (masked.masked_sum(x, mask, axis=2) for x in (trace.logprobs, logprobs))
  sign = jnp.sign(trace.advantages.sum(2))
  acting = (sign != 0).astype(jnp.float32)
  metrics = {
    "moved_right_way": masked.masked_mean(
      (sign * (after - before) > 0).astype(jnp.float32), acting
    ),
    "moved_nats": masked.masked_mean(sign * (after - before), acting),
  }
  importance_ratio = setup.objective.objective.importance_ratio
  if importance_ratio is not None:
    now, old = common.on_mask(logprobs, mask), common.on_mask(trace.logprobs, mask)
    ratios = common.ratio_and_largest(importance_ratio, now, old, mask, setup.objective.cfg)
    stands = surrogate.progress(*ratios, trace.advantages, trace.lower, trace.upper)
    tokens = mask * (trace.advantages != 0)  # none of a completion that is left out of the loss
    for name, there in zip(("short", "at_bound", "past_bound"), stands):
      metrics[f"tokens/{name}"] = masked.masked_mean(there.astype(jnp.float32), tokens)
  return metrics, before, after


def make_movement(setup: Setup) -> Callable:
  """Returns `movement` of a setup, jitted."""
  return jax.jit(
    functools.partial(movement, setup), compiler_options=compiler_options(setup.decoder)
  )
