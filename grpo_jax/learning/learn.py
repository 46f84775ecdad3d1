"""Updates the policy from rollouts in one jitted function, the only place with a gradient.

    learn(state, ref_params, old_params, rollouts, packing) -> (state, metrics, Trace)

It computes the log-probs of all tokens under the trees that the objective needs, lets the objective
prepare a batch, and makes mu passes over it in minibatches. Each minibatch is one update of the
optimizer, accumulated over microbatches. A microbatch is a slice of prompts; its denominators are
those of the whole minibatch (`TrainBatch.weights`), so its size changes nothing but memory.

Read from the bottom up: `learn`, `inner_loop`, `one_pass`, `optimizer_step`, `gradient`. The
forward passes are in passes.py.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.aliases import Tree
from grpo_jax.learning import optimizer, totals
from grpo_jax.learning.passes import (
  Setup,
  microbatches_of_minibatch,
  outputs,
  scores,
  with_frozen_logprobs,
)
from grpo_jax.learning.state import TrainState, Trees
from grpo_jax.learning.stop_rules import RAN_ALL, STOP_RULES
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.objectives import common
from grpo_jax.objectives.base import Needs
from grpo_jax.packing.microbatches import join_microbatches, split_microbatches
from grpo_jax.packing.plan import Packing
from grpo_jax.types import Array, Metrics, Rollouts, TrainBatch

Minibatches = tuple[TrainBatch, Packing]  # each array with a leading axis of minibatches


class Before(NamedTuple):
  """Predictions of the policy before an update, [P, G, L] float32, without meaning on padding."""

  logprobs: Array
  entropy: Array  # of the full softmax, in nats


class Trace(NamedTuple):
  """Starting point of an update, by which `movement` measures it."""

  # [P, G, L] float32, of the old policy, without meaning on padding; None for a reward model
  logprobs: Array | None
  entropy: Array | None
  advantages: Array  # [P, G, L] float32, 0 on padding
  lower: Array  # [P, G, L] float32, the least ratio that a token with A < 0 is driven to
  upper: Array  # [P, G, L] float32, the largest ratio that a token with A > 0 is driven to


# -- one update


def loss(
  setup: Setup, params: Trees, batch: TrainBatch, packing: Packing
) -> tuple[Array, tuple[Metrics, Before | None]]:
  """Returns the objective's loss of a microbatch, its metrics, and predictions of a policy."""
  before = None
  if setup.objective.trains_reward_model:
    value, metrics = setup.objective.loss(scores(setup, params, batch, packing), batch)
  else:
    out = outputs(setup, params, batch, packing)
    value, metrics = setup.objective.loss(out, batch)
    before = jax.lax.stop_gradient(Before(out.logprobs, out.entropy))
  return value, (metrics, before)


def gradient(
  setup: Setup, params: Trees, batch: TrainBatch, packing: Packing
) -> tuple[Array, Trees, Metrics, Before | None]:
  """Returns loss, gradient, metrics and predictions of a minibatch."""
  value_and_grad = jax.value_and_grad(functools.partial(loss, setup), has_aux=True)
  count = microbatches_of_minibatch(setup.cfg, batch.tokens.shape[0])
  if count == 1:
    (value, (metrics, before)), grads = value_and_grad(params, batch, packing)
    return value, grads, metrics, before

  def add_microbatch(total: tuple[Array, Trees], x: tuple[TrainBatch, Packing]) -> Tree:
    (value, aux), grads = value_and_grad(params, *x)
    return jax.tree.map(jnp.add, total, (value, grads)), aux

  zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
  cut = split_microbatches(setup.decoder.layout, (batch, packing), count)
  (value, grads), (metrics, before) = jax.lax.scan(add_microbatch, zero, cut)
  return value, grads, totals.combine_metrics(metrics), join_microbatches(before)


def optimizer_step(
  setup: Setup, state: TrainState, batch: TrainBatch, packing: Packing
) -> tuple[TrainState, Metrics, Before | None]:
  """Returns the state after an update, its metrics, and the policy's predictions before it."""
  value, grads, metrics, before = gradient(setup, state.params, batch, packing)
  taught = jnp.any(batch.weights != 0)
  state, skipped = optimizer.apply_if_finite(setup.tx, grads, value, state, taught)
  one = jnp.ones(())
  metrics |= {
    "loss": (value, one),
    "skipped": (skipped * 1.0, one),
  }
  metrics |= {name: (norm, one) for name, norm in optimizer.norms(grads).items()}
  return state, metrics, before


# -- the inner loop


def reweighted(setup: Setup, batch: TrainBatch) -> TrainBatch:
  """Returns the batch with weights that are normalised by its own completions."""
  weights = setup.objective.weights(batch.mask, batch.lengths)
  return dataclasses.replace(batch, weights=weights)


def one_pass(
  setup: Setup, state: TrainState, minibatches: Minibatches
) -> tuple[TrainState, Metrics]:
  """Returns the state after an update by each minibatch, and the metrics of all."""

  def step(state: TrainState, x: tuple[TrainBatch, Packing]) -> tuple[TrainState, Metrics]:
    batch, packing = x
    state, metrics, _ = optimizer_step(setup, state, reweighted(setup, batch), packing)
    return state, metrics

  state, metrics = jax.lax.scan(step, state, minibatches)
  return state, totals.combine_metrics(metrics)


class Passes(NamedTuple):
  """Progress of the inner loop."""

  state: TrainState
  made: Array  # [] int32
  stopped_by: Array  # [] int32, RAN_ALL while it continues
  best: Array  # [] float32, the largest mean surrogate of a pass; -inf before the first
  metrics: Metrics  # of all passes


def next_pass(setup: Setup, minibatches: Minibatches, passes: Passes) -> Passes:
  """Returns the progress after one more pass.

  The stop rules read the mean metrics of that pass. The pass that triggers one is kept, and is the
  last.
  """
  cfg, best = setup.cfg, passes.best
  state, metrics = one_pass(setup, passes.state, minibatches)
  mean = totals.means(metrics)
  reason = jnp.int32(RAN_ALL)
  for name, rule in STOP_RULES.items():
    if limit := getattr(cfg, name):
      reason = jnp.where(rule.ends(mean, limit, best), rule.code, reason)
  if "surrogate" in mean:
    best = jnp.maximum(best, mean["surrogate"])
  both = jax.tree.map(lambda a, b: jnp.stack([a, b]), passes.metrics, metrics)
  metrics = totals.combine_metrics(both)
  return Passes(state, passes.made + 1, reason, best, metrics)


def inner_loop(
  setup: Setup, state: TrainState, minibatches: Minibatches
) -> tuple[TrainState, Metrics]:
  """Returns the state after at most mu passes over the minibatches, and all metrics."""
  names = jax.eval_shape(lambda state: one_pass(setup, state, minibatches)[1], state)
  start = {name: totals.empty_metric(name) for name in names}
  passes = Passes(state, jnp.int32(0), jnp.int32(RAN_ALL), jnp.float32(-jnp.inf), start)

  def continues(passes: Passes) -> Array:
    return (passes.made < setup.cfg.mu) & (passes.stopped_by == RAN_ALL)

  passes = jax.lax.while_loop(continues, functools.partial(next_pass, setup, minibatches), passes)
  one = jnp.ones(())
  metrics = {
    "inner/passes": (passes.made * one, one),
    "inner/stopped_by": (passes.stopped_by * one, one),
  }
  return passes.state, passes.metrics | metrics


# -- the whole


def learn(
  setup: Setup,
  state: TrainState,
  ref_params: Params | None,
  old_params: Params | None,
  rollouts: Rollouts,
  packing: Packing,
  base: Params | None = None,
  ref_packing: Packing | None = None,
  entropy_weight: Array | float | None = None,
) -> tuple[TrainState, dict[str, Array], Trace]:
  """Returns the state after at most mu passes over the rollouts, their metrics, and their start.

  Args:
    setup: everything that stays the same from batch to batch.
    state: the policy (and critic) with its optimizer.
    ref_params: the reference's tree; None if the objective needs none; {} if it is the base itself.
    old_params: the tree that sampled the rollouts; None if that is the state itself.
    rollouts: P prompts with G completions each, with rewards if the objective reads them.
    packing: by `packing.plan.pack`, for `microbatches_of_rollout` microbatches.
    base: the frozen tree under adapters (models/lora.py); with one, the other trees hold the
      adapters alone.
    ref_packing: of `passes.asked_of_teacher`; None where the teacher is asked what the policy was.
    entropy_weight: in place of `objective.entropy_bonus`; None: that.
  """
  setup = setup.over(base, ref_params if Needs.TEACHER in setup.objective.needs else None)
  rollouts = with_frozen_logprobs(
    setup, state, ref_params, old_params, rollouts, packing, ref_packing
  )
  batch = setup.objective.prepare(rollouts)
  if entropy_weight is not None:
    weight = jnp.full(batch.tokens.shape[:1], entropy_weight, jnp.float32)
    batch = dataclasses.replace(batch, extra=batch.extra | {common.ENTROPY_WEIGHT: weight})
  # `prepare` may have read the old log-probs, as a KL in the reward does. The loss of a single
  # update by the policy that sampled goes without: then its ratios are exactly 1.
  if setup.updates == 1 and old_params is None:
    batch = dataclasses.replace(batch, old_logprobs=None)
  if setup.updates == 1:
    state, metrics, before = optimizer_step(setup, state, batch, packing)
  else:
    minibatches = split_microbatches(setup.decoder.layout, (batch, packing), setup.cfg.minibatches)
    state, metrics = inner_loop(setup, state, minibatches)
    before = None
    if rollouts.old_logprobs is not None and rollouts.old_entropy is not None:
      before = Before(rollouts.old_logprobs, rollouts.old_entropy)
  lower, upper = (jnp.broadcast_to(b, batch.mask.shape) for b in setup.objective.bounds(batch))
  live = setup.objective.live_advantages
  logprobs, entropy = before or (None, None)
  advantages = batch.advantages if logprobs is None else live(logprobs, batch)
  return state, totals.means(metrics), Trace(logprobs, entropy, advantages, lower, upper)


def make_learn(setup: Setup) -> jax.stages.Wrapped:
  """Returns `learn` of a setup, jitted; the state is donated."""
  options = compiler_options(setup.decoder)
  return jax.jit(functools.partial(learn, setup), donate_argnums=0, compiler_options=options)


def compiler_options(decoder: Decoder) -> dict[str, str | bool]:
  """Returns XLA's options for a CPU; there are none elsewhere.

  Only matrix products use its kernel library, whose reductions are slow. In bfloat16 each product
  is a kernel of its own: fused with what is around it, it is computed in float32, at half the
  speed. The analysis of regions saves copies, such as those of the moments before their update.
  Under adapters no code is moved out of loops: all layers of a base in bfloat16 would be converted
  to float32 at once.
  """
  if decoder.layout.platform != "cpu":
    return {}
  alone = "INDIVIDUAL_" if decoder.dtype == "bfloat16" else ""
  options = decoder.layout.compiler_options | {
    "xla_cpu_experimental_ynn_fusion_type": f"LIBRARY_FUSION_TYPE_{alone}DOT",
    "xla_cpu_copy_insertion_use_region_analysis": True,
  }
  if decoder.lora is None:
    return options
  return options | {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
