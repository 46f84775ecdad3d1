"""What objectives share."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases

from grpo_jax.objectives import common


def test_the_stop_token_is_trained_and_counts():
  r = cases.rollouts()
  batch = cases.prepare(r, cases.settings())
  np.testing.assert_array_equal(batch.mask.sum(2), r.lengths)
  last = common.last_token(r.lengths, 6)
  np.testing.assert_array_equal(batch.mask[last], 1.0)
  assert np.all(np.asarray(batch.advantages[last]) != 0)


def test_prefix_credit_adds_up_to_the_advantage():
  r = cases.rollouts()
  end = common.last_token(r.lengths, 6)
  # no two completions alike
  r = cases.replace(r, tokens=jnp.where(end, 10 + jnp.arange(4)[None, :, None], r.tokens))
  whole, split = (
    cases.prepare(r, cases.settings(advantage=a)).advantages
    for a in ("group_relative", "prefix_credit")
  )
  np.testing.assert_allclose(split.sum(2), whole[..., 0], atol=1e-4)
