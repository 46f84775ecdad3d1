"""Evaluations on labelled steps that are held out."""

import numpy as np
import pytest
from passed_on_test import WRITER, groups, stub

from grpo_jax.evaluation import step_evaluator
from grpo_jax.evaluation.step_evaluator import Steps


def test_steps_are_compared_with_labels_and_with_the_rewards(monkeypatch):
  r, rule = groups(1), np.full((1, 2, 4), np.nan, np.float32)
  r.given[0, 0, :], r.rewards[0, 0] = True, [1, 1, 0, 0]
  rule[0, 0, :3] = [1, 0, 0]
  scores = np.zeros((1, 2, 4), np.float32)
  scores[0, 0] = [2, 2, -2, 2]
  monkeypatch.setattr(step_evaluator, "scores_of_all", lambda *args: scores)
  own = step_evaluator.StepEvaluator.__new__(step_evaluator.StepEvaluator)
  own.cfg, own.offline = stub(batch=1), stub(held_out=1)
  own.decoder, own.sizes, own.held_out = None, stub(fresh=lambda: None), Steps(r, rule)
  found = own(WRITER, None, 0)
  assert (found["steps"], found["step_accuracy"], found["step_agreement"]) == (4, 0.75, 0.75)
  assert (found["rule_accuracy"], found["label_agreement"]) == (0.75, pytest.approx(2 / 3))
  assert found["rule_accuracy_right"] == 1.0 and found["rule_accuracy_wrong"] == 0.5
