"""VESPO (arXiv 2602.10693): a smooth weight of the whole completion's importance ratio.

    W   = exp(sum over the completion of log pi - log mu), mu the sampler
    phi = e^lam W^k e^(-lam W)
    J   = mean over all tokens of sg(phi) A log pi

phi is 1 at W = 1 and largest at W = k / lam. With A >= 0 the paper has k = 2 and lam = 3, otherwise
k = 3 and lam = 2. With k = lam = 0 it is REINFORCE, and with k = 1 and lam = 0 importance sampling
of completions. The sampler's mismatch is in W, so that no other weight stands beside it. Everything
before the loss is GRPO's.

Differences from TRL 1.16: it truncates or masks pi_old / mu of each token before the product, and
can add a KL; log W is clamped to [-20, 20] here, and to at least log 1e-8 there.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that VESPO reads, and the paper's k and lambda."""
  c = shared_settings.policy_gradient()
  c.aggregation = "token_mean"
  c.k_positive = 2.0  # power of the ratio where A >= 0
  c.k_negative = 3.0  # power of the ratio where A < 0
  c.lam_positive = 3.0  # damping of the ratio where A >= 0
  c.lam_negative = 2.0  # damping of the ratio where A < 0
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names and negative powers."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 0, "k_positive", "k_negative")
  shared_settings.check_at_least(cfg, 0, "lam_positive", "lam_negative")


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns -J of a slice of the batch, sum(weights * token loss), and its metrics."""
  logprobs, _, _ = common.policies(outputs, batch)
  sampler = common.sampler_logprobs(batch, cfg)
  good = batch.advantages >= 0
  k = jnp.where(good, cfg.k_positive, cfg.k_negative)
  lam = jnp.where(good, cfg.lam_positive, cfg.lam_negative)
  phi = jax.lax.stop_gradient(surrogate.smooth_weight(logprobs - sampler, batch.mask, k, lam))
  reported = metrics.policy_metrics(outputs, batch)
  reported["phi"] = metrics.token_mean(phi, batch.mask)
  return -jnp.sum(batch.weights * phi * batch.advantages * logprobs), reported


OBJECTIVE = Objective(loss, settings=settings, check=check)
