"""Scores of steps, and how good they are."""

import jax
import numpy as np
import pytest
import small_models  # noqa: F401  adds the variants named test_*

from grpo_jax.reward_models import step_scores
from grpo_jax.setup import build


def test_steps_of_a_model_that_is_not_sure():
  """A score of 0 says that a step is wrong; a label of one half is wrong, too."""
  found = step_scores.step_metrics(np.array([0.0, 1.0, -1.0]), np.array([1.0, 1.0, 0.5]))
  assert (found["accuracy_right"], found["accuracy_wrong"], found["wrong"]) == (
    0.5,
    1.0,
    pytest.approx(1 / 3),
  )


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  make = build.model
  monkeypatch.setattr(
    build, "model", lambda config, scores=False: make(config, jax.devices()[:1], scores)
  )


def test_step_metrics_by_hand():
  found = step_scores.step_metrics(
    np.array([2.0, -1.0, 1.0, -3.0, -1.0]), np.array([1.0, 0.75, 0.5, 0.0, 0.0])
  )
  want = {
    "accuracy_right": 1 / 2,
    "accuracy_wrong": 2 / 3,
    "accuracy": 7 / 12,
    "agreement": 3 / 5,
    "wrong": 3 / 5,
  }
  assert {name: found[name] for name in want} == pytest.approx(want)
  assert found["area"] == (3 + 1.5) / 6  # of six pairs: 2 beats all, -1 beats -3 and ties with -1
  sigma = 1 / (1 + np.exp([-2.0, 1.0, -1.0, 3.0, 1.0]))
  assert found["brier"] == pytest.approx(np.mean((sigma - [1, 0.75, 0.5, 0, 0]) ** 2))
  assert set(step_scores.step_metrics(np.array([1.0]), np.array([1.0]))) == {
    "agreement",
    "brier",
    "wrong",
  }
