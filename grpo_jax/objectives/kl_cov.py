"""KL-Cov (arXiv 2505.22617): tokens that would narrow the policy most are held near pi_old.

    J   = mean over tokens of rho A - penalty |log rho| on the chosen ones
    cov = (A - mean A) (log pi_old - mean log pi_old), means over all tokens of the batch

Chosen is the `share` of tokens with the largest cov: mostly unlikely ones with A < 0, which it
makes less likely still, then likely ones with A > 0. Both lower the entropy. The coefficient of
grad log pi is rho A - penalty sign(log rho) on them and rho A on the others; nothing is clipped. At
pi = pi_old it is REINFORCE, so it needs several updates on a rollout. Everything before the loss is
GRPO's.

The paper's share is 2e-3 for a model of 7B parameters and 2e-4 for one of 32B. Its authors' code
chooses in each microbatch, by the policy as it is there; here it is the whole batch, by pi_old, so
that the choice does not depend on how the batch is cut.
"""

import dataclasses

import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, grpo, metrics, shared_settings
from grpo_jax.objectives.base import Needs
from grpo_jax.ops import masked
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that KL-Cov reads, and its own."""
  c = grpo.settings()
  c.aggregation = "token_mean"
  c.share = 2e-3  # of the batch's tokens, at least one, that is held
  c.penalty = 1.0  # weight of |log rho| on the tokens that are held
  for unread in ("clip_low", "clip_high", "clip_delta", "kl_past_bound"):  # nothing is clipped
    del c[unread]
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and a share or penalty out of range."""
  grpo.check(cfg)
  shared_settings.check_between(cfg, 1e-6, 1, "share")
  shared_settings.check_at_least(cfg, 0, "penalty")


def needs(cfg: ConfigDict) -> Needs:
  """Returns what GRPO needs, and the old policy."""
  return grpo.needs(cfg) | Needs.OLD_POLICY


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns GRPO's batch; `extra["held"]` is 1 on the chosen tokens."""
  batch = grpo.prepare(rollouts, cfg, advantages)
  old = common.require(rollouts.old_logprobs, "old_logprobs", cfg.name)
  apart = covariance(batch.advantages, old, batch.mask)
  # where no token has an advantage all are equal, and none stands out
  held = masked.largest(apart, batch.mask, cfg.share) * (apart != 0)
  return dataclasses.replace(batch, extra={"held": held})


def covariance(advantages: Array, logprobs: Array, mask: Array) -> Array:
  """Returns each token's part of the covariance of A and log pi over the batch, [P, G, L]."""
  a, b = (x - masked.masked_mean(x, mask) for x in (advantages, common.on_mask(logprobs, mask)))
  return a * b


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, old, ref = common.policies(outputs, batch)
  ratio = common.token_ratio(logprobs, old, batch.mask, cfg)
  gain = ratio * batch.advantages * common.mismatch(logprobs, old, batch, cfg)
  moved = logprobs - old
  # |x| as x sign(x): at 0, where the first update is, it has no gradient; that of jnp.abs is 1
  held = cfg.penalty * batch.extra["held"] * moved * jnp.sign(moved)
  reported = metrics.policy_metrics(outputs, batch)
  reported |= metrics.ratio_metrics(outputs, batch, cfg, common.token_ratio, None, gain)
  kl = grpo.kl_term(logprobs, old, ref, cfg)
  bonus = common.entropy_bonus(outputs, batch, cfg)
  return jnp.sum(batch.weights * (kl + held - gain - bonus)), reported


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE,
  loss=loss,
  prepare=prepare,
  settings=settings,
  check=check,
  needs=needs,
  bounds=common.no_bounds,
)
