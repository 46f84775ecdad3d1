"""Rewards from scores."""

import dataclasses

import forward_test
import jax
import numpy as np
import pytest
import tiny

from grpo_jax.packing.sizes import Sizes
from grpo_jax.reward_models import rewards as model_rewards
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.rewards import combine
from grpo_jax.sampling import rollouts as host
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example


def test_an_outcome_is_judged_after_its_end_and_what_was_cut_off_is_the_least_of_its_group():
  scores = np.array([[3.0, -1.0, 9.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
  lengths = np.array([[2, 4, 8], [8, 8, 8], [0, 0, 0]])
  ended = np.array([[STOPPED, STOPPED, TRUNCATED], [TRUNCATED] * 3, [STOPPED] * 3])
  rewards, given = model_rewards.outcome_rewards(scores, lengths, ended)
  np.testing.assert_array_equal(rewards, [[3, -1, -1], [0, 0, 0], [0, 0, 0]])
  np.testing.assert_array_equal(given, [[True] * 3, [False] * 3, [False] * 3])


@pytest.mark.parametrize("score", [-9.0, 0.0, 9.0])
def test_the_score_of_what_was_cut_off_does_not_count_whatever_it_is(score):
  scores = np.array([[3.0, -1.0, score]], np.float32)
  rewards, _ = model_rewards.outcome_rewards(
    scores, np.array([[2, 4, 8]]), np.array([[STOPPED, STOPPED, TRUNCATED]])
  )
  np.testing.assert_array_equal(rewards, [[3, -1, -1]])


def test_a_step_is_judged_after_its_last_token_and_one_that_was_cut_off_is_wrong():
  scores = np.array([9.0, 0.0, 9.0, np.log(3.0), 9.0], np.float32)
  whole = Completion("a\nb", [5, 6, 7, 8], STOPPED, [1, 3])
  assert model_rewards.process_rewards(scores, whole) == [(1, 0.5), (3, pytest.approx(0.75))]
  cut = whole._replace(ended=TRUNCATED)
  assert model_rewards.process_rewards(scores, cut) == [(1, 0.5), (3, 0.0)]
  assert model_rewards.process_rewards(scores, Completion("", [], STOPPED, [])) == []


@pytest.mark.parametrize(("mesh", "microbatches"), [(tiny.ONE, 2), ((1, 2, 2, 2), 1)])
def test_a_batch_is_judged_as_the_learner_packs_it(mesh, microbatches):
  decoder, params = forward_test.scorer(mesh)
  r = tiny.rollouts()
  want = forward_test.scores(tiny.ONE, r, packed=False)
  model = RewardModel("judge", 1.0, False, decoder, jax.device_put(params, decoder.shardings()))
  (scores,) = model_rewards.judge([model], Sizes(0, decoder.layout, tiny.LP, microbatches), r)
  np.testing.assert_allclose(host.to_host(scores)[tiny.real(r)], want[tiny.real(r)], atol=1e-4)

  ended = dataclasses.replace(r, ended=np.full_like(r.ended, STOPPED))
  last_of = model_rewards.given_to(model, scores, ended)
  steps_of = model_rewards.given_to(model._replace(steps=True), scores, ended)
  for p, g in zip(*np.nonzero(r.lengths)):
    n = int(r.lengths[p, g])
    completion = Completion("", [1] * n, STOPPED, [0, n - 1] if n > 1 else [0])
    assert last_of(p, g, completion) == [(n - 1, pytest.approx(want[p, g, n - 1], abs=1e-4))]
    sure = 1 / (1 + np.exp(-want[p, g, completion.step_ends].astype(float)))
    assert [value for _, value in steps_of(p, g, completion)] == pytest.approx(list(sure), abs=1e-4)


def test_rewards_of_models_are_added_to_those_of_functions():
  example, completion = Example("", "", "", {}), Completion("", [1, 2, 3], STOPPED, [0, 2])

  def steps(p, g, completion):
    return [(0, 0.5), (2, 0.25 + g)]

  def broken(p, g, completion):
    return [(2, float("nan"))]

  found = combine.score(
    [("one", lambda *_: 1.0, 2.0)],
    [example],
    [[completion] * 2],
    4,
    -7.0,
    models=[("a", steps, 10.0), ("b", broken, 1.0)],
  )
  np.testing.assert_array_equal(found.rewards[0], [[5, 0, 2 + 2.5 - 7, 0], [5, 0, 2 + 12.5 - 7, 0]])
  np.testing.assert_array_equal(found.given[0], [[True, False, True, False]] * 2)
  np.testing.assert_allclose(found.components[0], [[1, 0.375, -7], [1, 0.875, -7]])
  assert [(fault.sample, fault.name) for fault in found.faults] == [(0, "b"), (1, "b")]
