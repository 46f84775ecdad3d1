"""Settings, rollouts and outputs for the tests of objectives: small, random, with completions of
uneven lengths.
"""

import dataclasses
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from experiments import presets
from grpo_jax.objectives import (
  cispo,
  clip_cov,
  distill,
  distill_offline,
  dpo,
  dppo,
  gkd,
  gmpo,
  grpo,
  gspo,
  kimi,
  kl_cov,
  ppo,
  process_reward_model,
  reward_model,
  rft,
  rpg,
  sapo,
  sft,
  target_prob,
  tpo,
  vespo,
)
from grpo_jax.objectives.base import ConfiguredObjective, Objective
from grpo_jax.ops import distillation
from grpo_jax.ops.distillation import Divergence
from grpo_jax.setup import registry
from grpo_jax.types import STOPPED, TRUNCATED, Outputs, Prompts, Rollouts, Scores, TrainBatch

# Every objective, with settings that switch on as much of it as goes together.
CASES = {
  "grpo": (grpo, dict(beta=0.1)),
  "grpo process": (grpo, dict(beta=0.1, kl_estimator="k2", scale="batch")),
  "grpo weighted": (grpo, dict(beta=0.1, kl_weighted=True, clip_delta=1.5, mismatch="token")),
  "grpo reward": (
    grpo,
    dict(beta=0.1, kl_in_reward=True, kl_estimator="k1", scale="none", baseline="leave_one_out"),
  ),
  "grpo stop": (
    grpo,
    dict(beta=0.1, kl_past_bound=False, mismatch="sequence", keep="sequence", keep_high=2.0),
  ),
  "grpo icepop": (
    grpo,
    dict(mismatch="token", mismatch_high=0.0, keep="token", keep_low=0.7, keep_high=1.3),
  ),
  "grpo live": (
    grpo,
    dict(keep="geometric", keep_low=1.0, keep_live=True, keep_condition="negative"),
  ),
  "grpo onwards": (
    grpo,
    dict(keep="mean", keep_by="tv", keep_high=0.2, keep_condition="onwards"),
  ),
  "step_returns": (grpo, dict(advantage="step_returns")),
  "gdpo": (grpo, dict(advantage="gdpo")),
  "prefix_credit": (grpo, dict(advantage="prefix_credit")),
  "dr_grpo": (grpo, dict(aggregation="constant", scale="none")),
  "dapo": (grpo, dict(aggregation="group_token_mean", clip_high=0.28, mask_truncated=True)),
  "grpo entropy": (grpo, dict(entropy_bonus=0.1, top_entropy=0.5)),
  "otb": (grpo, dict(advantage="otb")),
  "token_mean": (grpo, dict(aggregation="token_mean")),
  "gspo": (gspo, dict(beta=0.1, clip_low=0.05, clip_high=0.05)),
  "gspo_token": (gspo, dict(token_level=True, clip_low=0.05, clip_high=0.05)),
  "cispo": (cispo, dict(beta=0.1, aggregation="sequence_mean")),
  "sapo": (sapo, dict(beta=0.1)),
  "gmpo": (gmpo, dict(beta=0.1, clip_low=0.1, clip_high=0.1)),
  "vespo": (vespo, {}),
  "kimi": (kimi, {}),
  "clip_cov": (clip_cov, dict(share=0.3, cov_low=0.0, beta=0.1)),
  "kl_cov": (kl_cov, dict(share=0.3, beta=0.1)),
  "tpo": (tpo, {}),
  "dppo": (dppo, dict(bound=0.05)),
  "dppo kl": (dppo, dict(moved="kl", bound=0.01)),
  "rpg reverse": (rpg, dict(beta=0.1, divergence="reverse")),
  "rpg reverse_unnormalised": (rpg, dict(beta=0.1, divergence="reverse_unnormalised")),
  "rpg forward": (rpg, dict(beta=0.1, divergence="forward")),
  "rpg forward_unnormalised": (rpg, dict(beta=0.1, divergence="forward_unnormalised")),
  "ppo": (ppo, dict(beta=0.1)),
  "ppo group": (ppo, dict(group_baseline=True, whiten=False)),
  "ppo vapo": (ppo, dict(lam_length=0.4, critic_lam=1.0, imitation=0.1, entropy_bonus=0.1)),
  "target_prob": (target_prob, {}),
  "sft": (sft, {}),
  "rft": (rft, {}),
  "dpo": (dpo, dict(beta=0.1, label_smoothing=0.1)),
  "distill": (distill, {}),
  "distill_offline": (distill_offline, {}),
  "gkd": (gkd, dict(divergence="forward", ratio_cap=1.1)),
  "gkd top": (gkd, dict(divergence="reverse", top_k=5, top_k_of="teacher", mismatch="token")),
  "reward_model": (reward_model, {}),
  "process_reward_model": (process_reward_model, {}),
}
# Advantages that none of them has; their loss is that of GRPO.
ADVANTAGES = {
  name: (grpo, dict(advantage=name))
  for name in ("maxrl", "opo", "reinforce_pp", "reinforce_pp_baseline")
} | {
  # with as many attempts as a group has samples, nearly all would be 0
  name: (grpo, dict(advantage=name, attempts=2))
  for name in ("pass_at_k", "pkpo")
}
PAIRS = ("dpo", "reward_model")
PROCESS = ("grpo process", "step_returns", "process_reward_model")  # several rewards a completion


MODULES = {module.OBJECTIVE: module for module, _ in CASES.values()}


def section(objective: ModuleType | Objective = grpo, **changes: Any) -> ConfigDict:
  """Returns the `objective` section of an objective, with changes, which may add settings."""
  module = MODULES[objective] if isinstance(objective, Objective) else objective
  ours = module.__name__.startswith("grpo_jax.")
  c = ConfigDict({"name": module.__name__.rpartition(".")[2] if ours else module.__file__})
  c.update(module.OBJECTIVE.settings())
  c.update({"max_length": 6} if "max_length" in c else {})
  with c.ignore_type():
    c.update(changes)  # what refers to a setting follows it
  return ConfigDict(c.to_dict())


def configured(objective: ModuleType | Objective = grpo, **changes: Any) -> ConfiguredObjective:
  """Returns the objective with its settings, checked."""
  return registry.configured(section(objective, **changes))


def settings(objective: ModuleType | Objective = grpo, **changes: Any) -> FrozenConfigDict:
  """Returns the section as the objective's functions take it."""
  return configured(objective, **changes).cfg


def of_preset(name: str) -> dict[str, Any]:
  """Returns what a row of presets.py changes of its objective's settings."""
  _, changes = presets.PRESETS[name]
  section = "objective."
  return {k.removeprefix(section): v for k, v in changes.items() if k.startswith(section)}


def prepare(r: Rollouts, cfg: FrozenConfigDict) -> TrainBatch:
  """Returns the batch that the objective of these settings prepares."""
  return registry.configured(cfg).prepare(r)


def times(rollouts: Rollouts, *, factor: float = 1.0) -> jax.Array:
  """Returns the reward times a factor: an advantage of a user's with an argument of its own."""
  score = (rollouts.rewards * rollouts.given).sum(2, keepdims=True)
  return jnp.broadcast_to(factor * score, rollouts.tokens.shape)


def rollouts(seed=0, P=4, G=4, L=6, process=False) -> Rollouts:
  """Returns random rollouts with everything in them; tokens of a small vocabulary, so that prefixes
  are shared. They are float64 under the fixture `float64`.
  """
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, L + 1, (P, G))
  last = np.arange(L) == lengths[..., None] - 1
  inside = np.arange(L) < lengths[..., None]
  given = last | (inside & (rng.random((P, G, L)) < 0.4)) if process else last

  def logprobs():
    return jnp.asarray(-rng.exponential(0.7, (P, G, L)), float)

  old = logprobs()
  return Rollouts(
    prompts=Prompts(jnp.zeros((P, 3), jnp.int32), jnp.full((P,), 3)),
    tokens=jnp.asarray(rng.integers(0, 2, (P, G, L))),
    lengths=jnp.asarray(lengths),
    ended=jnp.asarray(np.where(lengths == L, TRUNCATED, STOPPED)),
    sampler_logprobs=old + jnp.asarray(rng.normal(0, 0.3, (P, G, L)), float),
    truncated_logprobs=old,
    rewards=jnp.asarray(rng.random((P, G, L)), float),
    given=jnp.asarray(given),
    components=jnp.asarray(rng.random((P, G, 2)), float),
    old_logprobs=old,
    old_entropy=jnp.asarray(rng.exponential(0.5, (P, G, L)), float),
    old_sum_of_squares=jnp.asarray(rng.uniform(0.1, 1, (P, G, L)), float),
    ref_logprobs=logprobs(),
    ref_hidden=jnp.asarray(rng.normal(0, 1, (P, G, L, 3)), float),
    old_values=jnp.asarray(rng.normal(0, 1, (P, G, L)), float),
  )


def outputs(r: Rollouts, seed=1, spread=0.3) -> Outputs:
  """Outputs near the old policy's, some of them past the clip bounds."""
  rng = np.random.default_rng(seed)

  def near(x):
    return x + jnp.asarray(rng.normal(0, spread, x.shape), float)

  old = (near(r.old_logprobs), near(r.old_entropy), near(r.old_sum_of_squares), near(r.old_values))
  return Outputs(*old, divergence=jnp.asarray(rng.exponential(0.5, r.tokens.shape), float))


def with_divergence(out: Outputs, spec: Divergence | None, vocabulary=9) -> Outputs:
  """Outputs with the divergence of random distributions that `spec` asks for."""
  if spec is None:
    return out
  keys = jax.random.split(jax.random.key(2))
  both = [jax.random.normal(key, (*out.logprobs.shape, vocabulary)) for key in keys]
  return dataclasses.replace(
    out, divergence=distillation.value(spec, *map(jax.nn.log_softmax, both))
  )


def scores(r: Rollouts, seed=1) -> Scores:
  """Returns scores near the old values."""
  return Scores(outputs(r, seed).values)


def predictions(objective: Objective, r: Rollouts) -> Outputs | Scores:
  """Returns `outputs`, or `scores` for a reward model."""
  return scores(r) if objective.trains_reward_model else outputs(r)


def given(name: str, seed=0):
  """Returns objective, settings and rollouts of the kind that it takes, of a case or advantage."""
  module, changes = (CASES | ADVANTAGES)[name]
  r = rollouts(seed, G=2 if name in PAIRS else 4, process=name in PROCESS)
  return module.OBJECTIVE, settings(module, **changes), r


def case(name: str, seed=0):
  """(objective, settings, prepared batch, outputs) of one of CASES."""
  objective, cfg, r = given(name, seed)
  return objective, cfg, prepare(r, cfg), predictions(objective, r)


def rows(x, take):
  """A slice along P of any pytree of arrays."""
  return jax.tree.map(lambda a: a[take], x)


def one_token_batch(logprobs, advantages, weights, old=None, ref=None) -> TrainBatch:
  """A batch of P = n, G = L = 1 out of arrays [n]: for worked examples and enumerations."""
  shape = (-1, 1, 1)

  def as_batch(x):
    return None if x is None else jnp.reshape(x, shape)

  n = jnp.size(logprobs)
  mask = jnp.ones((n, 1, 1))
  return TrainBatch(
    prompts=Prompts(jnp.zeros((n, 1), jnp.int32), jnp.ones((n,), jnp.int32)),
    tokens=jnp.zeros((n, 1, 1), jnp.int32),
    lengths=jnp.ones((n, 1), jnp.int32),
    mask=mask,
    advantages=jnp.broadcast_to(jnp.reshape(advantages, shape), mask.shape),
    weights=jnp.broadcast_to(jnp.reshape(weights, shape), mask.shape),
    old_logprobs=as_batch(old),
    ref_logprobs=as_batch(ref),
  )


def one_token_outputs(logprobs) -> Outputs:
  lp = jnp.reshape(logprobs, (-1, 1, 1))
  return Outputs(lp, jnp.zeros_like(lp), jnp.zeros_like(lp))


def replace(x, **changes):
  return dataclasses.replace(x, **changes)
