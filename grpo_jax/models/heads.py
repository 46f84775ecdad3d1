"""Heads that make one number of a hidden state: a critic's value, a reward model's score."""

import jax.numpy as jnp

from grpo_jax.types import Array

Params = dict[str, Array]


def init_scalar(width: int) -> Params:
  """Returns a head that says 0 of everything, so that the first values and scores are not noise."""
  return {"weight": jnp.zeros((1, width), jnp.float32), "bias": jnp.zeros((1,), jnp.float32)}


def scalar(head: Params, hidden: Array) -> Array:
  """Returns one number of each hidden state `[..., D]`: `[...]` float32."""
  return (hidden.astype(jnp.float32) @ head["weight"].T + head["bias"])[..., 0]
