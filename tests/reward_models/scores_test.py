"""Scores of completions, and how good they are."""

from typing import Any

import numpy as np
import pytest
from passed_on_test import groups, stub

from grpo_jax.reward_models import scores as reward_models
from grpo_jax.reward_models.scores import margins, pair_metrics


def test_scores_of_all_are_as_many_as_were_given(monkeypatch):
  def scored(decoder: Any, microbatches: int) -> Any:
    return lambda params, batch: batch.tokens.astype(np.float32)

  monkeypatch.setattr(reward_models, "jitted_scores", scored)
  monkeypatch.setattr(reward_models.rollouts, "to_device", lambda layout, x: x)
  seen = []
  sizes: Any = stub(layout=None, microbatches=1, for_learner=lambda few: (few,))
  found = reward_models.scores_of_all(
    None, None, groups(5), sizes, 2, lambda *done: seen.append(done)
  )  # type: ignore
  assert found[:, 0, 0].tolist() == [0, 1, 2, 3, 4] and seen == [(2, 5), (4, 5), (5, 5)]


def test_confidence_is_of_the_choice_that_the_model_would_have_made():
  """Margins of -log 3: p of the right choice is 1/4, so it is 3/4 sure of the wrong one each time."""
  found = reward_models.pair_metrics(np.full(4, -np.log(3.0)))
  assert found["pair_ece"] == pytest.approx(0.75) and found["pair_brier"] == pytest.approx(0.5625)


def test_metrics_of_four_pairs_by_hand():
  """sigma = 0.72, 0.5, 0.28 and 0.72: two right, a tie, one wrong with a confidence of 0.72."""
  margin = np.log(0.72 / 0.28)
  found = pair_metrics(np.array([margin, 0.0, -margin, margin]))
  assert found["pair_accuracy"] == pytest.approx(2.5 / 4)
  assert found["pair_margin"] == pytest.approx(margin / 4)
  assert found["pair_loss"] == pytest.approx(-np.log([0.72, 0.5, 0.28, 0.72]).mean())
  assert found["pair_brier"] == pytest.approx((0.28**2 + 0.5**2 + 0.72**2 + 0.28**2) / 4)
  assert found["pair_ece"] == pytest.approx(abs(2 - 3 * 0.72) / 4)  # the tie's bin has no gap
  # sure of both, right once
  assert pair_metrics(np.array([1e6, -1e6]))["pair_ece"] == pytest.approx(0.5)


def test_margins_are_of_the_scores_after_the_last_tokens():
  scores = np.array([[[1.0, 2, 3], [5, 7, 9]], [[4, 0, 0], [0, 0, 1]]], np.float32)
  np.testing.assert_array_equal(margins(scores, np.array([[2, 1], [1, 3]])), [2 - 5, 4 - 1])
