"""Reward models of outcomes."""

import dataclasses

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


def test_a_head_that_says_nothing_yet_is_right_in_half_of_the_pairs():
  _, _, batch, out = cases.case("reward_model")
  same = dataclasses.replace(out, scores=jax.numpy.zeros_like(out.scores))
  _, metrics = reward_model.loss(same, batch, cases.settings(reward_model))
  total, count = metrics["pair_accuracy"]
  assert total == count / 2 > 0


def test_a_pair_counts_once_whatever_its_length():
  """Compares the loss with the mean over pairs of -log sigma(chosen - rejected)."""
  _, _, batch, out = cases.case("reward_model")
  loss, metrics = reward_model.loss(out, batch, cases.settings(reward_model))
  last = np.asarray(common.last_token(batch.lengths, 6))
  chosen, rejected = (np.asarray(out.scores) * last).sum(2).T
  assert len({*np.asarray(batch.lengths).ravel().tolist()}) > 1
  each = np.log1p(np.exp(rejected - chosen))
  np.testing.assert_allclose(loss, each.mean(), rtol=1e-5)
  for name, want in (
    ("pair_loss", each),
    ("reward_margin", chosen - rejected),
    ("pair_accuracy", chosen > rejected),
  ):
    np.testing.assert_allclose(metrics[name], (want.sum(), len(each)), rtol=1e-5, err_msg=name)
