"""The advantages that a config can name."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases

from grpo_jax.objectives import advantages as named
from grpo_jax.objectives import common


def test_step_returns_compare_with_the_completions_that_are_there():
  """Rewards 1 and 0 of two completions: the mean is 1/2, whatever lies in the rows that only fill
  the group.
  """
  r = cases.rollouts(P=1, G=4)
  lengths = jnp.array([[2, 2, 0, 0]])
  last = common.last_token(lengths, 6)
  r = cases.replace(
    r, lengths=lengths, given=last, rewards=last * jnp.array([1.0, 0.0, 9.0, 9.0])[:, None]
  )
  found = named.step_returns(r, scale="none", ddof=1, eps=1e-4)
  np.testing.assert_allclose(found[0, :, 0], [0.5, -0.5, 0.0, 0.0])
