"""Heads that make one number of a hidden state: a critic's value, a reward model's score."""

import jax.numpy as jnp

from grpo_jax.types import Array

Params = dict[str, Array]


def init_scalar(width: int) -> Params:
  """Returns a head that says 0 of everything, so that the first values and scores are not noise."""
  return {"weight": jnp.zeros((1, width), jnp.float32), "bias": jnp.zeros((1,), jnp.float32)}


def scalar(head: Params, hidden: Array) -> Array:
  """Returns one number of each hidden state `[..., D]`: `[...]` float32."""
  return score(head, hidden) + head["bias"][0]


def init_score(width: int) -> Params:
  """Returns a reward model's head that says 0 of everything: without a bias, as Hugging Face's
  score heads are.
  """
  return {"weight": jnp.zeros((1, width), jnp.float32)}


def score(head: Params, hidden: Array) -> Array:
  """Returns the score of each hidden state `[..., D]`: `[...]` float32."""
  return (hidden.astype(jnp.float32) @ head["weight"].T)[..., 0]
