"""Target probabilities, "how much, not how fast": each token is given a probability to reach.

A completion better than its group's mean is good (+1), a worse one bad (-1), one within `margin` of
it neither (0). A good token's target is sqrt(p_old), a bad one's p_old^2. The loss is the clipped
surrogate with the token's own bounds, which as ratios are [p_old, p_old^(-1/2)]. There is no 1/G,
no 1/|o| and no KL; the only normaliser is the number of prompts ("prompt_sum" of ops/masked.py). It
needs several updates on a rollout (learner.mu).

Distinct tokens of a group may follow the same context (the same prefix). A token that is good in
one completion and bad in another then takes the net sign, and the good targets are p + c (sqrt(p) -
p), with the largest c <= 1 for which they sum to at most 1 - the sum of the bad targets. (Scaling
all targets down would lower tokens that are good.) A token at its target already, such as one of
probability 1, has A = 0.
"""

import chex
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective, needs_old_policy
from grpo_jax.ops import advantages as adv
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of target probabilities."""
  c = shared_settings.join(shared_settings.truncation(), shared_settings.mismatch())
  c.margin = 1e-3  # a reward within it of the group's mean is neither good nor bad
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses an unknown mismatch correction, and a negative margin."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "margin")


def bounds(batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Array]:
  """Returns the ratio target / p_old as lower or upper bound, by each token's sign, [P, G, L]."""
  del cfg
  return batch.extra["lower"], batch.extra["upper"]


def targets(tokens: Array, lengths: Array, signs: Array, probs: Array) -> tuple[Array, Array]:
  """Returns the net sign and the target probability of every token.

  Args:
    tokens: [P, G, L] int.
    lengths: [P, G] int.
    signs: [P, G, L] float in {-1, 0, 1}, of the token's completion.
    probs: [P, G, L] float, p_old.

  Returns:
    (signs, targets), both [P, G, L]: the net sign over the group, and the target; p_old where the
    sign is 0.
  """
  chex.assert_rank(tokens, 3)
  chex.assert_shape([signs, probs], tokens.shape)
  chex.assert_shape(lengths, tokens.shape[:2])
  length = tokens.shape[2]
  shared = adv.shared_prefix(tokens, lengths)
  inside = jnp.arange(length) < lengths[..., None]

  def in_group(shared, inside, signs, p):
    # [G, G, L]
    context = (shared[..., None] >= jnp.arange(length)) & inside[:, None] & inside[None]
    same = context & (shared[..., None] > jnp.arange(length))
    net = jnp.sign(jnp.sum(jnp.where(same, signs[None], 0.0), axis=1))
    # each distinct token counts once, however often sampled
    once = 1.0 / jnp.maximum(jnp.sum(same, axis=1), 1)

    def over_context(x):
      return jnp.sum(jnp.where(context, (once * x)[None], 0.0), axis=1)

    good, bad = net > 0, net < 0
    room = 1.0 - over_context(bad * p**2) - over_context(good * p)
    wanted = over_context(good * (jnp.sqrt(p) - p))
    c = jnp.clip(jnp.where(wanted > 0, room / jnp.where(wanted > 0, wanted, 1.0), 1.0), 0.0, 1.0)
    return net, jnp.where(good, p + c * (jnp.sqrt(p) - p), jnp.where(bad, p**2, p))

  return jax.vmap(in_group)(shared, inside, signs, probs)


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns the batch with signs for advantages and, in `extra`, each token's bounds as ratios."""
  del advantages
  rewards, given = common.scored(rollouts, cfg.name)
  mask = common.completion_mask(rollouts, cfg.mask_truncated)
  # masked completions share contexts, too
  inside = common.sampled_mask(rollouts)
  old = common.on_mask(common.require(rollouts.old_logprobs, "old_logprobs", cfg.name), inside)
  signs = adv.sign(rewards, given, cfg.margin) * mask
  probs = jnp.exp(old)
  net, target = targets(rollouts.tokens, rollouts.lengths, signs, probs)
  bound = target / probs
  net = jnp.where(jnp.where(net > 0, bound > 1.0, bound < 1.0), net, 0.0)
  extra = {
    "lower": jnp.where(net < 0, bound, 0.0),
    "upper": jnp.where(net > 0, bound, jnp.inf),
  }
  return common.train_batch(
    rollouts, net, mask, common.prompt_sum_weights(mask, rollouts.lengths, cfg), extra
  )


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns minus the clipped surrogate with each token's own bound, and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  lower, upper = bounds(batch, cfg)
  gain = surrogate.clipped(ratio, batch.advantages, lower, upper) * common.mismatch(
    logprobs, old, batch, cfg
  )
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(outputs, batch, cfg, common.token_ratio, (lower, upper), gain)
  return -jnp.sum(batch.weights * gain), reported


OBJECTIVE = Objective(
  loss,
  prepare,
  settings,
  check,
  needs_old_policy,
  importance_ratio=common.token_ratio,
  weights=common.prompt_sum_weights,
  bounds=bounds,
)
