"""DPO."""

import dataclasses

import numpy as np
import objective_cases as cases

from grpo_jax.objectives import dpo
from grpo_jax.objectives.coefficients import gradient_coefficient
from objectives.coefficients_test import prepared


def test_dpo_is_the_written_out_loop():
  _, _, batch, out = cases.case("dpo")
  loss, metrics = dpo.loss(out, batch, cases.settings(dpo, beta=0.3))
  total = 0.0
  rewards = []
  for pair in range(4):
    h = [0.0, 0.0]
    for side in range(2):
      for t in range(int(batch.lengths[pair, side])):
        h[side] += float(out.logprobs[pair, side, t]) - float(batch.ref_logprobs[pair, side, t])
    total -= np.log(1 / (1 + np.exp(-0.3 * (h[0] - h[1]))))
    rewards.append((0.3 * h[0], 0.3 * h[1]))
  np.testing.assert_allclose(loss, total / 4, rtol=1e-5)
  chosen, rejected = np.array(rewards).T
  for name, want in (
    ("reward_chosen", chosen),
    ("reward_rejected", rejected),
    ("reward_margin", chosen - rejected),
    ("pair_accuracy", chosen > rejected),
  ):
    np.testing.assert_allclose(metrics[name], (want.sum(), 4.0), rtol=1e-4, err_msg=name)


def test_the_reference_itself_wins_half_of_the_pairs():
  """Begins with the accuracy of chance, as in an evaluation."""
  _, _, batch, out = cases.case("dpo")
  same = dataclasses.replace(out, logprobs=batch.ref_logprobs)
  _, metrics = dpo.loss(same, batch, cases.settings(dpo))
  np.testing.assert_array_equal(metrics["pair_accuracy"], (2.0, 4.0))


def test_dpo():
  r = cases.rollouts(G=2)
  batch, cfg = prepared(dpo, r, beta=0.3)
  out = cases.outputs(r)
  h = np.asarray(((out.logprobs - r.ref_logprobs) * batch.mask).sum(2))
  beta_sigma = 0.3 / (1 + np.exp(-0.3 * (h[:, 1] - h[:, 0])))
  sign = np.array([1.0, -1.0])[None, :, None]
  got = gradient_coefficient(dpo, out, batch, cfg)
  # Every token of a pair has the whole coefficient, not its 1/|o|: the weights of a pair add up to
  # one over the pairs.
  np.testing.assert_allclose(got, sign * beta_sigma[:, None, None] * batch.mask / 4, rtol=1e-4)
