"""Process reward models."""

import numpy as np
import objective_cases as cases

from grpo_jax.objectives import process_reward_model


def test_a_process_reward_model_learns_from_the_last_tokens_of_steps_alone():
  """Sum over labelled steps of the cross-entropy of sigma(value) with the label, over |steps| N."""
  r = cases.rollouts(process=True)
  out = cases.scores(r)
  cfg = cases.settings(process_reward_model)
  batch = cases.prepare(r, cfg)
  np.testing.assert_array_equal(batch.mask, r.given)
  p, y = 1 / (1 + np.exp(-np.asarray(out.scores, np.float64))), np.asarray(r.rewards, np.float64)
  entropy = -(y * np.log(p) + (1 - y) * np.log(1 - p))
  want = np.mean(np.mean(entropy, axis=2, where=np.asarray(r.given)))
  np.testing.assert_allclose(process_reward_model.loss(out, batch, cfg)[0], want, rtol=1e-5)
