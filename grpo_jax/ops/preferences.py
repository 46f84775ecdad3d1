"""Computes losses of comparisons and of step labels: Bradley-Terry, DPO, process reward models.

All arguments of a function have one shape, [...]; nothing is broadcast.
"""

import jax
import jax.numpy as jnp

from grpo_jax.ops import shapes
from grpo_jax.types import Array


def bradley_terry(chosen: Array, rejected: Array) -> Array:
  """Returns -log sigma(chosen - rejected) for the scores of each pair.

  This is the loss of an outcome reward model (Ouyang et al., arXiv 2203.02155, eq. 1).
  """
  shapes.assert_same(chosen, rejected)
  return jax.nn.softplus(rejected - chosen)


def dpo(chosen: Array, rejected: Array, beta: float, label_smoothing: float = 0.0) -> Array:
  """Returns the loss of DPO (arXiv 2305.18290, eq. 7): -log sigma(beta (h_chosen - h_rejected)).

  The gradient by the chosen sequence's log-prob is -beta sigma(beta (h_rejected - h_chosen)), and
  its opposite by the rejected one's. DeepSeekMath's table drops beta and divides by |o|.

  Args:
    chosen: [...] h = log pi(o) - log pi_ref(o), summed over the chosen completion.
    rejected: [...] the same of the rejected one.
    beta: the strength of the KL constraint, as an inverse temperature of the implied reward.
    label_smoothing: the probability that a label is wrong (conservative DPO); 0 is DPO.
  """
  right = bradley_terry(beta * chosen, beta * rejected)
  wrong = bradley_terry(beta * rejected, beta * chosen)
  return (1.0 - label_smoothing) * right + label_smoothing * wrong


def won(margin: Array) -> Array:
  """Returns 1 where the chosen completion has the larger score, else 0; 0.5 for a tie.

  Args:
    margin: [...] score of the chosen completion less that of the rejected one.
  """
  return (margin > 0) + 0.5 * (margin == 0)


def step_loss(scores: Array, labels: Array) -> Array:
  """Returns the cross-entropy of sigma(score) with a label in [0, 1], for each step.

  Math-Shepherd, arXiv 2312.08935, eq. 2; -y log sigma(s) - (1 - y) log(1 - sigma(s)) is
  softplus(s) - y s.
  """
  shapes.assert_same(scores, labels)
  return jax.nn.softplus(scores) - labels * scores


def soft_labels(successes: Array, tries: Array) -> Array:
  """Returns the share of a step's continuations with the right answer (Math-Shepherd, eq. 4)."""
  shapes.assert_same(successes, tries)
  return successes / jnp.maximum(tries, 1)


def hard_labels(successes: Array) -> Array:
  """Returns 1 for a step with a continuation to the right answer, else 0 (Math-Shepherd, eq. 3)."""
  return (successes > 0).astype(jnp.float32)
