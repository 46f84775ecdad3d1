"""Kimi k1.5's objective (arXiv 2501.12599): mirror descent with a squared log-ratio.

    J = -1 / (2 tau) of the mean over completions of (A - tau sum over tokens of log(pi / pi_old))^2

The coefficient of grad log pi is A - tau sum(log(pi / pi_old)) on every token of the completion:
there is no ratio and no clip. On the first update it is REINFORCE. With A = r - tau log Z, Z the
mean of e^(r / tau) under pi_old, the policy rests at pi_old e^(r / tau) / Z; as in the paper, A is
the reward less the group's mean, in place of tau log Z. The weights are those of the aggregation
"constant", which adds up the tokens of a completion. All tokens of a completion should have one
advantage.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.objectives import common, metrics, shared_settings
from grpo_jax.objectives.base import Objective
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns those settings of GRPO that it reads, and tau."""
  c = shared_settings.join(shared_settings.policy_gradient(), shared_settings.mismatch())
  c.scale = "none"
  c.aggregation = "constant"
  c.tau = 0.1  # weight of the squared log-ratio of a completion
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses unknown names and a tau that holds nothing back."""
  shared_settings.check(cfg)
  shared_settings.check_at_least(cfg, 1e-6, "tau")


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns a loss of a slice of the batch with that gradient, and its metrics."""
  logprobs, old, _ = common.policies(outputs, batch)
  moved = jnp.sum(batch.mask * (logprobs - old), axis=2, keepdims=True)
  coefficient = jax.lax.stop_gradient(batch.advantages - cfg.tau * moved * batch.mask)
  gain = coefficient * logprobs * common.mismatch(logprobs, old, batch, cfg)
  reported = metrics.policy_metrics(outputs, batch) | metrics.kept(logprobs, old, batch, cfg)
  return -jnp.sum(batch.weights * gain), reported


OBJECTIVE = Objective(loss, settings=settings, check=check)
