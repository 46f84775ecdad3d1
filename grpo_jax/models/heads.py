"""Heads that make one number from a hidden state: a critic's value, a reward model's score."""

import jax.numpy as jnp

from grpo_jax.ops.precision import precision
from grpo_jax.types import Array

Params = dict[str, Array]


def init_scalar(width: int) -> Params:
  """Returns a head whose output is 0, so that the first values are not noise."""
  return {"weight": jnp.zeros((1, width), jnp.float32), "bias": jnp.zeros((1,), jnp.float32)}


def scalar(head: Params, hidden: Array) -> Array:
  """Returns one number of each hidden state `[..., D]`: `[...]` float32."""
  return score(head, hidden) + head["bias"][0]


def init_score(width: int) -> Params:
  """Returns a reward model's head whose output is 0; like Hugging Face's it has no bias."""
  return {"weight": jnp.zeros((1, width), jnp.float32)}


def score(head: Params, hidden: Array) -> Array:
  """Returns the score of each hidden state `[..., D]`: `[...]` float32."""
  return jnp.matmul(hidden.astype(jnp.float32), head["weight"].T, precision=precision(jnp.float32))[
    ..., 0
  ]
