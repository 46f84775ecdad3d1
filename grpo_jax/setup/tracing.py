"""Traces an objective and its advantage before a run starts, so that a mistake in them is one line.

jax.eval_shape runs their Python code on shapes in place of arrays. Nothing is computed or compiled,
and the shapes are those of the run. The code of a user's file may do anything; `calls.call` turns
what it raises into a message.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.errors import SettingError
from grpo_jax.learning import passes, totals
from grpo_jax.learning.stop_rules import STOP_RULES
from grpo_jax.objectives.base import ConfiguredObjective, Needs
from grpo_jax.setup import calls, constants
from grpo_jax.setup.abstract import Sizes, trace, wrong
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import STOPPED, Outputs, Prompts, Rollouts, Scores, TrainBatch

LARGEST_TRIED = 2**22  # tokens of the rollouts that an advantage is computed for
LOSS = "(loss, metrics): a float32 scalar, and {name: (total, count)} of scalars"
LARGEST_SLICED = 2**18  # and of those whose loss is computed in slices


def check_objective(experiment: Experiment) -> None:
  """Refuses an objective, or an advantage that it names, whose functions fail or return what cannot
  be learned from.
  """
  source = experiment.source
  configured = experiment.objective
  objective = configured.objective
  if source not in objective.data:  # checks.check_data says so
    return
  sizes = Sizes(
    P=experiment.data.prompts,
    G=experiment.completions,
    L=experiment.sampler.max_length,
    Q=experiment.data.max_prompt_length,
  )
  sizes["1"] = 1
  if source == "live" or not (source == "solutions" or experiment.offline.pairs):
    sizes["N"] = max(1, len(experiment.components))
  shown = f"objective.name={experiment.objective.name!r}"
  expects = "a value of Needs (grpo_jax.objectives.base)"
  needs = calls.call(shown, "needs", expects, objective.needs, configured.cfg)
  if not isinstance(needs, Needs):
    raise wrong(shown, "needs", objective.needs, sizes.describe(needs), expects)
  if needs and objective.trains_reward_model:
    expects = "Needs.NOTHING, as trains_reward_model=True"
    raise wrong(shown, "needs", objective.needs, str(needs), expects)

  updates = experiment.learner.mu * experiment.learner.minibatches
  rollouts = _rollouts(sizes, source, configured, updates)
  advantages = None
  if configured.advantage is not None:
    known = rollouts
    if source == "live" and not configured.advantage_reads_old_policy:
      known = _as_sampled(rollouts)  # which groups are flat is asked before any other pass
    advantages = check_advantage(experiment, configured.advantage, sizes, known)
  batch = _check_prepare(shown, configured, sizes, rollouts, advantages)
  if source == "live":
    expects = f"bool {sizes.expects('P')}"
    trace(
      shown,
      sizes,
      "flat",
      objective.flat,
      expects,
      lambda x: sizes.fits(x, "P", kind=jnp.bool_),
      rollouts,
      configured.cfg,
      advantages,
    )
  _check_loss(experiment, configured, sizes, batch)
  if "." in experiment.objective.name:
    check_slices(experiment, sizes)


def check_slices(experiment: Experiment, sizes: Sizes) -> None:
  """Refuses a loss that is no sum over its tokens, where a run gives it microbatches.

  The gradient of each half of a batch is compared with that of the whole batch there.
  """
  cfg, configured, n_prompts = experiment.learner, experiment.objective, sizes["P"]
  if passes.microbatches_of_minibatch(cfg, n_prompts // cfg.minibatches) == 1:
    return
  length = max(1, min(sizes["L"], LARGEST_SLICED // (n_prompts * sizes["G"])))
  cut = Sizes(sizes | {"L": length})
  like = _rollouts(cut, experiment.source, configured, cfg.mu * cfg.minibatches)
  rollouts = _some_rollouts(like)
  logprobs = -0.5 - 0.1 * np.random.default_rng(0).random(rollouts.tokens.shape, np.float32)
  names = ("sampler_logprobs", "old_logprobs", "ref_logprobs")
  known: Json = {name: logprobs for name in names if getattr(like, name) is not None}
  rollouts = dataclasses.replace(rollouts, **known)
  now = jnp.asarray(0.9 * logprobs)
  outputs: Outputs | Scores = Scores(now)
  if not configured.trains_reward_model:
    values = now if Needs.CRITIC in configured.needs else None
    divergence = -now if Needs.TEACHER in configured.needs else None
    outputs = Outputs(now, -now, jnp.exp(2 * now), values, divergence)

  def part(start: int, end: int) -> Any:
    own = jax.tree.map(lambda x: x[start:end], (outputs, batch))
    return calls.call(shown, "loss", LOSS, gradient, *own)

  shown, half = f"objective.name={configured.name!r}", n_prompts // 2
  gradient = jax.jit(
    functools.partial(_gradient(configured.objective.loss), settings=configured.cfg)
  )
  prepare = jax.jit(configured.prepare)
  batch = calls.call(shown, "prepare", "a TrainBatch", prepare, rollouts)
  whole = jax.tree.leaves(part(0, n_prompts))
  halves = [jax.tree.leaves(part(*ends)) for ends in ((0, half), (half, n_prompts))]
  for once, first, second in zip(whole, *halves):
    apart = np.concatenate([first, second]) - once
    if np.abs(apart).max() > 1e-3 * np.abs(once).max():
      raise SettingError(
        f"{shown}: loss ({calls.place(configured.objective.loss)}) has another gradient for each "
        f"half of a batch than for the whole; with learner.microbatch={cfg.microbatch} it should "
        "be a sum over tokens, jnp.sum(batch.weights * token_loss), since batch.weights has the "
        "denominators of the whole batch"
      )


def check_advantage(
  experiment: Experiment, advantage: Callable, sizes: Sizes, rollouts: Rollouts
) -> jax.ShapeDtypeStruct:
  """Refuses an advantage that fails, has another shape, or is not finite for groups that a run is
  sure to meet; returns its shape and dtype.

  Args:
    experiment: of the run.
    advantage: the function that `objective.advantage` names, bound to its settings.
    sizes: of the run.
    rollouts: without content.
  """
  shown, expects = (
    f"objective.advantage={experiment.objective.cfg.advantage!r}",
    f"float32 {sizes.expects('PGL')}",
  )
  traced = trace(
    shown, sizes, "the function", advantage, expects, lambda x: sizes.fits(x, "PGL"), rollouts
  )
  if (
    ":" not in experiment.objective.cfg.advantage
    or sizes["P"] * sizes["G"] * sizes["L"] > LARGEST_TRIED
  ):
    return traced
  tried = calls.call(shown, "the function", expects, jax.jit(advantage), _some_rollouts(rollouts))
  for group, prompt in (
    ("whose rewards are all equal", 0),
    ("whose rewards differ", 1),
    ("that is empty", -1),
  ):
    if not np.all(np.isfinite(np.asarray(tried, np.float32)[prompt : prompt + 1 or None])):
      raise wrong(
        shown,
        "the function",
        advantage,
        f"NaN or an infinity for a group {group}",
        "finite numbers",
      )
  return traced


def _rollouts(sizes: Sizes, source: str, configured: ConfiguredObjective, updates: int) -> Rollouts:
  """Returns rollouts without content as the learner gives them to `prepare`; see
  passes.with_frozen_logprobs.
  """
  tokens, lengths = sizes.array("PGL", jnp.int32), sizes.array("PG", jnp.int32)
  logprobs = sizes.array("PGL")
  own = logprobs if source in ("live", "steps") else None
  more: Json = {}
  if "N" in sizes:
    more = {
      "rewards": logprobs,
      "given": sizes.array("PGL", jnp.bool_),
      "components": sizes.array("PGN"),
    }
  if not configured.trains_reward_model:
    needs = configured.needs
    old = updates > 1 or needs & (Needs.OLD_POLICY | Needs.CRITIC)
    more |= {"ref_logprobs": logprobs} if Needs.REFERENCE in needs else {}
    # the width is of the model, which is not known here
    more |= {"ref_hidden": sizes.array("PGL1")} if Needs.TEACHER in needs else {}
    for name in ("old_logprobs", "old_entropy", "old_sum_of_squares") if old else ():
      more[name] = logprobs
    more |= {"old_values": logprobs} if Needs.CRITIC in needs else {}
  prompts = Prompts(sizes.array("PQ", jnp.int32), sizes.array("P", jnp.int32))
  return Rollouts(prompts, tokens, lengths, lengths, own, logprobs, **more)


def _as_sampled(rollouts: Rollouts) -> Rollouts:
  """Returns the rollouts without what passes of other policies add to them."""
  old = ("old_logprobs", "old_entropy", "old_sum_of_squares", "old_values")
  nothing: Json = dict.fromkeys((*old, "ref_logprobs", "ref_hidden"))
  return dataclasses.replace(rollouts, **nothing)


def _some_rollouts(like: Rollouts) -> Rollouts:
  """Returns rollouts with one reward a completion: of the first group all are equal, and the last
  one is empty.
  """
  some = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
  n_prompts, group, length = some.tokens.shape
  some.lengths[:] = length
  some.prompts.lengths[:] = 1
  some.ended[:] = STOPPED
  last = slice(-1, None) if n_prompts > 2 else slice(0)  # a prompt that only fills the batch
  some.lengths[last], some.prompts.lengths[last] = 0, 0
  if some.rewards is not None:
    some.rewards[1:, :, -1] = (1 + np.arange(group)) % 2
    some.given[:, :, -1] = True
    some.given[last], some.rewards[last] = False, 0
    some.components[:] = some.rewards.sum(2)[..., None]
  return some


def _check_prepare(
  shown: str,
  configured: ConfiguredObjective,
  sizes: Sizes,
  rollouts: Rollouts,
  advantages: jax.ShapeDtypeStruct | None,
) -> TrainBatch:
  """Returns the traced batch of `prepare`; refuses arrays of other shapes than theirs."""
  prepare = configured.objective.prepare
  batch = trace(
    shown,
    sizes,
    "prepare",
    prepare,
    "a TrainBatch",
    lambda x: isinstance(x, TrainBatch),
    rollouts,
    configured.cfg,
    advantages,
  )
  for name in ("tokens", "lengths", "mask", "advantages", "weights"):
    letters = "PG" if name == "lengths" else "PGL"
    value = getattr(batch, name)
    if not sizes.fits(value, letters):
      raise wrong(
        shown, "prepare", prepare, f"{name} {sizes.describe(value)}", sizes.expects(letters)
      )
  for name, value in batch.extra.items():
    for leaf in jax.tree.leaves(value):
      if leaf.shape[:1] != sizes.shape("P"):
        expects = f"[P] or [P, G, ...] with P = {sizes['P']}"
        raise wrong(shown, "prepare", prepare, f"extra[{name!r}] {sizes.describe(leaf)}", expects)
  return batch


def _check_loss(
  experiment: Experiment, configured: ConfiguredObjective, sizes: Sizes, batch: Any
) -> None:
  """Traces the functions that are called with a slice of the batch along P, the loss with its
  gradient.
  """
  cfg, objective, settings = experiment.learner, configured.objective, configured.cfg
  # checks.check_learner refuses others
  part = max(1, sizes["P"] // passes.microbatches_of_rollout(cfg, sizes["P"]))
  cut = Sizes(sizes | {"P": part})
  batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((part, *x.shape[1:]), x.dtype), batch)
  run = functools.partial(trace, f"objective.name={experiment.objective.name!r}", cut)
  per_token = f"float32 {cut.expects('PGL')}"
  logprobs = cut.array("PGL")

  def is_token(x: Any) -> bool:
    return cut.fits(x, "PGL")

  run("weights", objective.weights, per_token, is_token, batch.mask, batch.lengths, settings)
  values = logprobs if Needs.CRITIC in configured.needs else None
  divergence = logprobs if Needs.TEACHER in configured.needs else None
  outputs: Outputs | Scores = Outputs(logprobs, logprobs, logprobs, values, divergence)
  if objective.trains_reward_model:
    outputs = Scores(logprobs)
  run("live_advantages", objective.live_advantages, per_token, is_token, logprobs, batch)
  expects = "two, each a number or [P, G, L]: the least and the largest ratio"
  run("bounds", objective.bounds, expects, lambda x: _are_bounds(x, cut), batch, settings)
  if objective.importance_ratio is not None:
    ratio, given = objective.importance_ratio, (logprobs, logprobs, batch.mask, settings)
    expects = f"float32 {cut.expects('PGL', 'PG1')}"
    run(
      "importance_ratio",
      ratio,
      expects,
      lambda x: cut.fits(x, "PGL", "PG1", kind=jnp.floating),
      *given,
    )
  _, metrics = run(
    "loss", objective.loss, LOSS, lambda x: _is_loss(x, cut), outputs, batch, settings
  )
  totals.check_names(metrics, experiment.objective.name)
  run("loss", _gradient(objective.loss), LOSS, lambda x: True, outputs, batch, settings)
  constants.check(
    f"objective.name={experiment.objective.name!r}", objective.loss, outputs, batch, settings
  )
  for rule, (_, names, _) in STOP_RULES.items():
    lacks = [name for name in names if name not in metrics]
    if getattr(cfg, rule) and lacks:
      raise SettingError(
        f"learner.{rule}={getattr(cfg, rule)}: it reads the metric {lacks[0]}, which "
        f"objective.name={experiment.objective.name!r} does not return; use 0"
      )


def _gradient(loss: Callable) -> Callable:
  """Returns a function of a loss's arguments: its gradient by the outputs. Errors name its file."""

  @functools.wraps(loss)
  def gradient(outputs: Outputs | Scores, batch: TrainBatch, settings: Any) -> Outputs | Scores:
    return jax.grad(lambda outputs: loss(outputs, batch, settings)[0])(outputs)

  return gradient


def _are_bounds(value: Any, sizes: Sizes) -> bool:
  """Returns whether a value is what `bounds` should return."""
  if not isinstance(value, tuple | list) or len(value) != 2:
    return False
  return all(isinstance(x, int | float) or sizes.fits(x, "", "PGL", "PG1") for x in value)


def _is_loss(value: Any, sizes: Sizes) -> bool:
  """Returns whether a value is what `loss` should return."""
  if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[1], dict):
    return False
  pairs = all(
    isinstance(name, str) and isinstance(x, tuple | list) and len(x) == 2
    for name, x in value[1].items()
  )
  scalars = pairs and all(jnp.shape(x) == () for pair in value[1].values() for x in pair)
  return scalars and sizes.fits(value[0], "", kind=jnp.floating)
