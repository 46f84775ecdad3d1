"""The jitted update, and the only place with a gradient: forward -> objective -> optax.

    learn(state, ref_params, old_params, rollouts, packing) -> (state, metrics, Trace)

Log-probs of all G x |o| tokens under the trees that the objective needs, advantages, then mu passes over the rollouts
in minibatches, each one optimizer update, each accumulated over microbatches. A microbatch is a slice of prompts;
the denominators are those of the whole minibatch (`TrainBatch.weights`), so its size changes nothing but memory.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from grpo_jax import forward, optim
from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Decoder
from grpo_jax.objectives import common
from grpo_jax.ops import masked, surrogate
from grpo_jax.packing.microbatches import join_microbatches, split_microbatches
from grpo_jax.packing.plan import Packing
from grpo_jax.sharding import Layout
from grpo_jax.state import TrainState
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def microbatches(cfg: Any, minibatch: int) -> int:
  """Into how many microbatches the `learner` section cuts a minibatch of so many prompts."""
  return minibatch // cfg.microbatch if cfg.microbatch and cfg.microbatch < minibatch else 1


def parts(cfg: Any, prompts: int) -> int:
  """Into how many microbatches it cuts a whole rollout."""
  return cfg.minibatches * microbatches(cfg, prompts // cfg.minibatches)


def combine(name: str, values: Array) -> Array:
  """One metric over a leading axis: a sum, or a max by its name."""
  return jnp.max(values, axis=0) if name.endswith("_max") else jnp.sum(values, axis=0)


def combine_metrics(metrics: Metrics) -> Metrics:
  """(total, count) pairs with a leading axis -> without it."""
  return {k: (combine(k, total), combine(k, count)) for k, (total, count) in metrics.items()}


# Why the inner loop ended (metric inner/stopped_by).
RAN_ALL = 0  # all mu passes
STOPPED_REACHED = 1  # learner.stop_reached: enough of the tokens with an advantage had come to their bound
STOPPED_SURROGATE = 2  # learner.stop_surrogate: the surrogate improved by less
STOPPED_KL = 3  # learner.stop_kl: the mean k3 between old and new policy was beyond it


def empty_metric(name: str) -> tuple[Array, Array]:
  """What combines with a metric of that name and leaves it as it is."""
  return jnp.float32(-jnp.inf if name.endswith("_max") else 0.0), jnp.float32(0.0)


def outputs(decoder: Decoder, cfg: Any, temperature: float, params: Any, batch: Any, packing: Packing) -> Outputs:
  """What the trees in `params` say of the completions of a Rollouts or TrainBatch."""
  given = (batch.prompts, batch.tokens, batch.lengths, packing)
  lp, entropy = forward.logprobs(decoder, params["policy"], *given, temperature=temperature, chunk=cfg.chunk)
  return Outputs(lp, entropy, forward.values(decoder, params["critic"], *given) if "critic" in params else None)


def frozen(
  decoder: Decoder, cfg: Any, temperature: float, params: Any, rollouts: Rollouts, packing: Packing
) -> Outputs:
  """`outputs` of trees that are not trained, a microbatch at a time."""
  run = lambda x: outputs(decoder, cfg, temperature, params, *x)
  cut = split_microbatches(decoder.layout, (rollouts, packing), parts(cfg, rollouts.tokens.shape[0]))
  return jax.lax.stop_gradient(join_microbatches(jax.lax.map(run, cut)))


class Trace(NamedTuple):
  """What an update started from, to see later what it did."""

  logprobs: Array  # [P, G, L] float32, of the old policy; padding holds numbers without meaning
  advantages: Array  # [P, G, L] float32, 0 on padding
  lower: Array  # [P, G, L] float32, the least ratio that is asked of a token with A < 0
  upper: Array  # [P, G, L] float32, the largest one of a token with A > 0


def make_learn(
  decoder: Decoder,
  objective: Any,
  tx: optax.GradientTransformation,
  cfg: Any,
  objective_cfg: Any,
  temperature: float,
) -> Callable:
  """The jitted learner.

  Args:
    decoder: the model, in the learner's dtype.
    objective: a module of `grpo_jax.objectives`; `objectives/common.py` says what is in one.
    tx: the optimizer of {"policy": tree, ...}.
    cfg: the `learner` section: mu, minibatches, microbatch, chunk.
    objective_cfg: the `objective` section.
    temperature: the one that the completions were sampled at.

  Returns:
    `learn(state, ref_params, old_params, rollouts, packing) -> (state, metrics, Trace)`. The state is donated.
    ref_params: a policy tree, or None if the objective does not need one. old_params: None where the state itself
    sampled the rollouts. packing: of `packing.plan.pack`, for as many parts as `parts(cfg, P)` says.

  Raises:
    SettingError: a rule that ends the passes, for an objective without a ratio or where there is one pass.
  """
  for rule in ("stop_reached", "stop_surrogate", "stop_kl"):
    if cfg[rule] and not hasattr(objective, "importance_ratio"):
      raise SettingError(f"learner.{rule}={cfg[rule]}: {objective_cfg.name} has no ratio to the old policy; use 0")
    if cfg[rule] and cfg.mu == 1:
      raise SettingError(
        f"learner.{rule}={cfg[rule]} with learner.mu=1: it ends passes before mu; use 0, or a larger mu"
      )
  layout = decoder.layout
  updates = cfg.mu * cfg.minibatches
  needs = common.needs(objective, objective_cfg)

  run = functools.partial(outputs, decoder, cfg, temperature)
  run_frozen = functools.partial(frozen, decoder, cfg, temperature)

  def gradient(params: Any, batch: TrainBatch, packing: Packing) -> tuple[Array, Any, Metrics, Array]:
    """Loss, gradient, metrics and log-probs of one minibatch, summed over its microbatches."""

    def loss(params: Any, batch: TrainBatch, packing: Packing) -> Any:
      out = run(params, batch, packing)
      value, metrics = objective.loss(out, batch, objective_cfg)
      return value, (metrics, jax.lax.stop_gradient(out.logprobs))

    grad = jax.value_and_grad(loss, has_aux=True)
    pieces = microbatches(cfg, batch.tokens.shape[0])
    if pieces == 1:
      (value, (metrics, lp)), grads = grad(params, batch, packing)
      return value, grads, metrics, lp

    def body(total: Any, x: Any) -> Any:
      (value, aux), grads = grad(params, *x)
      return jax.tree.map(jnp.add, total, (value, grads)), aux

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (value, grads), (metrics, lp) = jax.lax.scan(body, zero, split_microbatches(layout, (batch, packing), pieces))
    return value, grads, combine_metrics(metrics), join_microbatches(lp)

  def reweigh(batch: TrainBatch) -> TrainBatch:
    """The weights of a minibatch: an update's denominators are its own."""
    o = objective_cfg
    weights = masked.token_weights(batch.mask, common.num_sequences(batch.lengths), o.aggregation, o.max_length)
    return dataclasses.replace(batch, weights=weights)

  def update(state: TrainState, batch: TrainBatch, packing: Packing) -> tuple[TrainState, Metrics, Array]:
    loss, grads, metrics, lp = gradient(state.params, batch, packing)
    state, skipped = optim.apply_if_finite(tx, grads, loss, state)
    one = jnp.ones(())
    metrics |= {"loss": (loss, one), "grad_norm": (optax.tree.norm(grads), one), "skipped": (skipped * 1.0, one)}
    return state, metrics, lp

  def one_pass(state: TrainState, minibatches: Any) -> tuple[TrainState, Metrics]:
    """Every minibatch once, an update each."""

    def body(state: TrainState, x: Any) -> tuple[TrainState, Metrics]:
      state, metrics, _ = update(state, reweigh(x[0]), x[1])
      return state, metrics

    state, metrics = jax.lax.scan(body, state, minibatches)
    return state, combine_metrics(metrics)

  def inner_loop(state: TrainState, minibatches: Any) -> tuple[TrainState, Metrics]:
    """At most mu passes. What a rule measures is measured as a pass goes along; the pass that trips it is the last."""

    def body(carry: Any) -> Any:
      state, passes, _, best, total = carry
      state, metrics = one_pass(state, minibatches)
      mean = {k: t / jnp.maximum(c, 1e-9) for k, (t, c) in metrics.items()}
      gain = mean["surrogate"] if cfg.stop_surrogate else best
      reason = jnp.int32(RAN_ALL)
      if cfg.stop_surrogate:
        reason = jnp.where((passes > 0) & (gain < best + cfg.stop_surrogate), STOPPED_SURROGATE, reason)
      if cfg.stop_reached:
        reached = mean["at_bound"] + mean["past_bound"]
        reason = jnp.where(reached >= cfg.stop_reached, STOPPED_REACHED, reason)
      if cfg.stop_kl:
        reason = jnp.where(mean["old_kl"] > cfg.stop_kl, STOPPED_KL, reason)
      total = combine_metrics(jax.tree.map(lambda a, b: jnp.stack([a, b]), total, metrics))
      return state, passes + 1, reason, jnp.maximum(best, gain), total

    shapes = jax.eval_shape(lambda s: one_pass(s, minibatches)[1], state)
    start = {k: empty_metric(k) for k in shapes}
    carry = (state, jnp.int32(0), jnp.int32(RAN_ALL), jnp.float32(-jnp.inf), start)
    state, passes, reason, _, metrics = jax.lax.while_loop(lambda c: (c[1] < cfg.mu) & (c[2] == RAN_ALL), body, carry)
    one = jnp.ones(())
    return state, metrics | {"inner/passes": (passes * one, one), "inner/stopped_by": (reason * one, one)}

  def trace(lp: Array, batch: TrainBatch) -> Trace:
    lower, upper = (jnp.broadcast_to(b, batch.mask.shape) for b in common.bounds(batch, objective_cfg))
    live = hasattr(objective, "live_advantages")
    return Trace(lp, objective.live_advantages(lp, batch) if live else batch.advantages, lower, upper)

  def learn(
    state: TrainState, ref_params: Any, old_params: Any, rollouts: Rollouts, packing: Packing
  ) -> tuple[TrainState, dict[str, Array], Trace]:
    if "ref" in needs:
      ref = run_frozen({"policy": ref_params}, rollouts, packing)
      rollouts = dataclasses.replace(rollouts, ref_logprobs=ref.logprobs)
    if updates > 1 or needs & {"old", "values"} or old_params is not None:
      before = state.params if old_params is None else state.params | {"policy": old_params}
      old = run_frozen(before, rollouts, packing)
      rollouts = dataclasses.replace(rollouts, old_logprobs=old.logprobs, old_values=old.values)
    batch = objective.prepare(rollouts, objective_cfg)
    if updates == 1 and old_params is None:  # the state itself sampled: every ratio is exactly 1
      batch = dataclasses.replace(batch, old_logprobs=None)
    if updates == 1:
      state, metrics, lp = update(state, batch, packing)
    else:
      state, metrics = inner_loop(state, split_microbatches(layout, (batch, packing), cfg.minibatches))
      lp = rollouts.old_logprobs
    return state, {k: t / jnp.maximum(c, 1e-9) for k, (t, c) in metrics.items()}, trace(lp, batch)

  return jax.jit(learn, donate_argnums=0, compiler_options=_compiler_options(layout))


def _compiler_options(layout: Layout) -> dict[str, str]:
  """On a CPU: only products go to its library of kernels. With sums, the default, a step takes a quarter longer."""
  kinds = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
  return kinds if layout.platform == "cpu" else {}


def make_report(decoder: Decoder, objective: Any, cfg: Any, objective_cfg: Any, temperature: float) -> Callable:
  """The report after the inner loop ("How much, not how fast": did the probabilities move the way that was asked?).

  Returns:
    jitted `report(params, rollouts, trace, packing) -> (metrics, before, after)`: a forward pass of the updated policy.
    `before`, `after`: log-probs of the sequences `[P, G]`, before the first update and after the last.
    `moved_right_way`: share of sequences with an advantage whose probability moved the way of its sign.
    `moved_nats`: mean change of a sequence's log-prob towards its advantage, in nats.
    `tokens/short`, `tokens/at_bound`, `tokens/past_bound`: shares of the tokens with an advantage, by where the ratio
    stands that the objective clips; left out where it has none.
  """

  def report(params: Any, rollouts: Rollouts, trace: Trace, packing: Packing) -> tuple[dict[str, Array], Array, Array]:
    lp = frozen(decoder, cfg, temperature, {"policy": params["policy"]}, rollouts, packing).logprobs
    mask = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[-1])
    before, after = (masked.masked_sum(x, mask, axis=2) for x in (trace.logprobs, lp))
    sign = jnp.sign(trace.advantages.sum(2))
    acting = (sign != 0).astype(jnp.float32)
    metrics = {
      "moved_right_way": masked.masked_mean((sign * (after - before) > 0).astype(jnp.float32), acting),
      "moved_nats": masked.masked_mean(sign * (after - before), acting),
    }
    if hasattr(objective, "importance_ratio"):
      trained = common.completion_mask(rollouts, objective_cfg.mask_truncated)
      now, old = common.on_mask(lp, trained), common.on_mask(trace.logprobs, trained)
      stands = common.ratio_and_largest(objective.importance_ratio, now, old, trained, objective_cfg)
      stand = surrogate.progress(*stands, trace.advantages, trace.lower, trace.upper)
      tokens = trained * (trace.advantages != 0)
      for name, at in zip(("short", "at_bound", "past_bound"), stand):
        metrics[f"tokens/{name}"] = masked.masked_mean(at.astype(jnp.float32), tokens)
    return metrics, before, after

  return jax.jit(report)
