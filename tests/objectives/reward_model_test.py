"""Reward models of outcomes."""

import jax
import numpy as np
import objective_cases as cases

from grpo_jax.objectives import (
  common,
  reward_model,
)


def test_reward_model_reads_the_last_token_only():
  _, _, batch, out = cases.case("reward_model")
  cfg = cases.settings(reward_model)
  slope = jax.grad(lambda out: reward_model.loss(out, batch, cfg)[0])(out).scores
  last = np.asarray(common.last_token(batch.lengths, 6))
  np.testing.assert_array_equal(np.asarray(slope)[~last], 0.0)
  assert np.all(np.asarray(slope)[:, 0].sum(1) < 0) and np.all(np.asarray(slope)[:, 1].sum(1) > 0)
