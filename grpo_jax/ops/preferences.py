"""Losses from comparisons and from step labels: Bradley-Terry, DPO, process reward models."""

import chex
import jax
import jax.numpy as jnp

from grpo_jax.types import Array


def bradley_terry(chosen: Array, rejected: Array) -> Array:
  """-log sigma(chosen - rejected): minus the log-probability that the chosen one wins. Shapes [...]."""
  chex.assert_equal_shape((chosen, rejected))
  return jax.nn.softplus(rejected - chosen)


def dpo(chosen: Array, rejected: Array, beta: float, label_smoothing: float = 0.0) -> Array:
  """DPO (arXiv 2305.18290, eq. 7): -log sigma(beta (h_chosen - h_rejected)).

  The gradient with respect to the chosen sequence's log-prob is -beta sigma(beta (h_rejected - h_chosen)), with
  respect to the rejected one's its opposite. DeepSeekMath's table drops beta and divides by |o|.

  Args:
    chosen: [...] h = log pi(o) - log pi_ref(o), summed over the chosen completion.
    rejected: [...] the same of the rejected one.
    beta: the strength of the KL constraint, as an inverse temperature of the implied reward.
    label_smoothing: the probability that a label is wrong (conservative DPO); 0 is DPO.

  Returns:
    [...] the loss of each pair.
  """
  right = bradley_terry(beta * chosen, beta * rejected)
  wrong = bradley_terry(beta * rejected, beta * chosen)
  return (1.0 - label_smoothing) * right + label_smoothing * wrong


def step_loss(scores: Array, labels: Array) -> Array:
  """Cross-entropy of sigma(score) with a label in [0, 1] (Math-Shepherd, arXiv 2312.08935, eq. 2). Shapes [...]."""
  chex.assert_equal_shape((scores, labels))
  return jax.nn.softplus(scores) - labels * scores


def soft_labels(successes: Array, tries: Array) -> Array:
  """The fraction of continuations of a step that reach the right answer (Math-Shepherd, eq. 4). Shapes [...]."""
  return successes / jnp.maximum(tries, 1)


def hard_labels(successes: Array) -> Array:
  """Whether any continuation of a step reaches the right answer, as 0 or 1 (Math-Shepherd, eq. 3). Shapes [...]."""
  return (successes > 0).astype(jnp.float32)
