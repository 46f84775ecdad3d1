"""Clip-Cov (arXiv 2505.22617): a few tokens that would narrow the policy much learn nothing.

    cov = (A - mean A) (log pi_old - mean log pi_old), means over all tokens of the batch

A `share` of the batch's tokens is drawn at random among those with cov_low < cov < cov_high; their
advantage is 0. All else is GRPO, whose ratio is clipped to 0 to 2, as in the authors' script. The
draw is a function of the batch's tokens, so a resumed run draws alike; it is made once for all
updates on a rollout.

The paper's share is 2e-4, its bounds are 1 and 5. Its authors' code draws in each microbatch, by
the policy as it is there, among tokens that the clip leaves; here it is the whole batch, by pi_old,
so that the draw does not depend on how the batch is cut.
"""

import dataclasses

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import common, grpo, kl_cov, shared_settings
from grpo_jax.objectives.base import Needs
from grpo_jax.types import Array, Rollouts, TrainBatch


def settings() -> ConfigDict:
  """Returns the settings of GRPO, and Clip-Cov's own."""
  c = grpo.settings()
  c.aggregation = "token_mean"
  c.clip_low = c.clip_high = 1.0
  c.share = 2e-4  # of the batch's tokens, at least one, that learns nothing
  c.cov_low = 1.0  # tokens are drawn among those whose covariance is above this
  c.cov_high = 5.0  # tokens are drawn among those whose covariance is below this
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and a share or bounds out of range."""
  grpo.check(cfg)
  shared_settings.check_between(cfg, 1e-6, 1, "share")
  if cfg.cov_low >= cfg.cov_high:
    raise SettingError(f"cov_low={cfg.cov_low}: use a number below cov_high={cfg.cov_high}")


def needs(cfg: ConfigDict) -> Needs:
  """Returns what GRPO needs, and the old policy."""
  return grpo.needs(cfg) | Needs.OLD_POLICY


def prepare(rollouts: Rollouts, cfg: ConfigDict, advantages: Array | None) -> TrainBatch:
  """Returns GRPO's batch with the advantage 0 on the drawn tokens."""
  batch = grpo.prepare(rollouts, cfg, advantages)
  old = common.require(rollouts.old_logprobs, "old_logprobs", cfg.name)
  cov = kl_cov.covariance(batch.advantages, old, batch.mask)
  real = batch.mask > 0
  among = real & (cov > cfg.cov_low) & (cov < cfg.cov_high)
  numbers = numbers_of(rollouts.tokens, real)
  count = jnp.maximum(cfg.share * jnp.sum(real), 1).astype(jnp.int32)
  drawn = draw(jax.random.key(jnp.sum(numbers)), numbers, real, among, count)
  return dataclasses.replace(batch, advantages=jnp.where(drawn, 0.0, batch.advantages))


def numbers_of(tokens: Array, real: Array) -> Array:
  """Returns a number of each group, `[P]` uint32, by its tokens in their places."""
  tokens, real = (x.reshape(len(x), -1).astype(jnp.uint32) for x in (tokens, real))
  place = jnp.cumsum(real, axis=1, dtype=jnp.uint32)
  mixed = (tokens + 1) * (place * jnp.uint32(2654435761) + 1)
  return jnp.sum(mixed * real, axis=1, dtype=jnp.uint32)


def draw(key: Array, groups: Array, real: Array, among: Array, count: Array | int) -> Array:
  """Returns which `count` of the true elements of `among` are drawn, all if they are fewer.

  Each is drawn with the same probability. A group's noise is by its number, and its elements are
  counted without those that are not `real`: neither the order of groups nor padding changes a draw.

  Args:
    key: of the batch.
    groups: `[P]`, a number of each group; groups with the same one have the same noise.
    real, among: `[P, G, L]` bool.
    count: elements to draw.
  """
  place = jnp.cumsum(real.reshape(len(groups), -1), axis=1) - 1
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, groups)
  uniform = jax.vmap(lambda key, place: jax.random.uniform(key, place.shape)[place])(keys, place)
  noise = jnp.where(among, uniform.reshape(real.shape), -1.0)
  ordered = jnp.sort(noise.ravel(), descending=True)
  return among & (noise >= ordered[jnp.clip(count - 1, 0, among.size - 1)])


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE, prepare=prepare, settings=settings, check=check, needs=needs
)
