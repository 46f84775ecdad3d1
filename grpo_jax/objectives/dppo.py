"""DPPO (arXiv 2602.04879): a token is left out once its probability, not its ratio, has moved far.

    J = sum over tokens of sg(M min(rho, cap)) A log pi,  rho = pi / mu, mu the sampler

    tv   M = 0 where pi - mu > bound and A > 0, or mu - pi > bound and A < 0
    kl   M = 0 where KL(mu || pi) of "this token or another" > bound and the same signs

So a rare token may change its ratio many times over, and a likely one cannot. The old policy is the
sampler itself: nothing is computed again, and there is no weight for their mismatch. The paper's
bounds are 0.15 (tv) and 0.05 (kl), and its cap goes from 10 to 10,000. With M = 1 it is CISPO
around the sampler. Everything before the loss is GRPO's.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that DPPO reads, and its own."""
  c = shared_settings.policy_gradient()
  c.aggregation = "token_mean"
  c.moved = "tv"  # measure of how far a token has moved: tv (probability) or kl
  c.bound = 0.15  # the largest move of a token that is still learned; 0.05 is usual for moved="kl"
  c.cap = 10.0  # the largest ratio that weighs a token
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names and bounds that leave nothing."""
  shared_settings.check(cfg)
  shared_settings.check_choice(cfg, "moved", surrogate.MOVES)
  shared_settings.check_at_least(cfg, 1e-6, "bound")
  shared_settings.check_at_least(cfg, 1, "cap")


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, _, _ = common.policies(outputs, batch)
  sampler = common.sampler_logprobs(batch, cfg)
  live = jax.lax.stop_gradient(logprobs)
  ratio = surrogate.token_ratio(live, sampler)
  keep = surrogate.within_move(live, sampler, batch.advantages, cfg.moved, cfg.bound)
  gain = keep * jnp.minimum(ratio, cfg.cap) * batch.advantages * logprobs
  reported = metrics.policy_metrics(outputs, batch)
  reported["kept"] = metrics.token_mean(keep, batch.mask)
  return -jnp.sum(batch.weights * gain), reported


OBJECTIVE = Objective(loss, settings=settings, check=check)
