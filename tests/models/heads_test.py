"""Heads for values and scores."""

import jax.numpy as jnp
import numpy as np

from grpo_jax.models import heads


def test_a_fresh_head_says_zero():
  assert (heads.scalar(heads.init_scalar(8), jnp.ones((2, 3, 8))) == np.zeros((2, 3))).all()
  assert (heads.score(heads.init_score(8), jnp.ones((2, 3, 8))) == np.zeros((2, 3))).all()
