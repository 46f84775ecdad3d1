"""Metrics of what was sampled, by hand: two prompts and one that only fills the batch."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tiny

from grpo_jax.loops import collect, groups, sample_metrics
from grpo_jax.rewards.combine import Fault
from grpo_jax.types import STOPPED, Prompts, ScoredRollouts

P, G, L = 3, 3, 4
NAN = float("nan")
NAMES = ["rule", "model"]
LENGTHS = [[1, 2, 3], [4, 2, 2], [0, 0, 0]]
RULE = [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
MODEL = [[0.5, 2.0, 1.0], [3.0, 1.0, 2.0], [0, 0, 0]]


def batch(
  rule: Any = RULE, model: Any = MODEL, lengths: Any = LENGTHS, faults: int = 0, **changes: Any
) -> groups.Scored:
  """Returns scored groups: the sum of both rewards on each last token, where there is one."""
  lengths = np.array(lengths, np.int32)
  components = np.stack([np.array(rule, np.float32), np.array(model, np.float32)], axis=2)
  place, zeros = np.arange(L), np.zeros((P, G, L), np.float32)
  last = place == lengths[..., None] - 1
  scored = ScoredRollouts(
    prompts=Prompts(np.ones((P, 2), np.int32), np.minimum(lengths.max(axis=1), 2)),
    tokens=np.where(place < lengths[..., None], 7, 0),
    lengths=lengths,
    ended=np.full(lengths.shape, STOPPED, np.int32),
    sampler_logprobs=zeros,
    truncated_logprobs=zeros,
    rewards=np.where(last, np.nansum(components, axis=2)[..., None], 0).astype(np.float32),
    given=last,
    components=components,
  )
  scored = dataclasses.replace(scored, **changes)
  return groups.Scored([None] * P, scored, [Fault("rule", 0, 0, "no")] * faults, 7.0)


FLAT = np.array([True, False, True])  # the last one is no group


def test_reward_metrics_of_one_batch():
  totals = np.array([0.5, 2.0, 2.0, 4.0, 1.0, 3.0])
  assert sample_metrics.reward_metrics([batch(faults=2)], [FLAT], NAMES) == {
    "tokens": 14,
    "reward_faults": 2,
    "zero_variance": 0.5,
    "cut_off_nats": 7.0 / 14,
    "reward/mean": pytest.approx(totals.mean()),
    "reward/std": pytest.approx(totals.std()),
    "rewards_given": 1.0,
    "reward/rule": pytest.approx(3 / 6),
    "reward/model": pytest.approx(9.5 / 6),
  }


def test_reward_metrics_of_several_batches_are_of_all_their_completions():
  """Not means of means: the second batch has one group alone."""
  other = batch(lengths=[[4, 4, 4], [0, 0, 0], [0, 0, 0]], faults=1)
  none = np.array([False, True, True])
  got = sample_metrics.reward_metrics([batch(), other], [FLAT, none], NAMES)
  assert got["tokens"] == 14 + 12 and got["reward_faults"] == 1
  assert got["zero_variance"] == pytest.approx(1 / 3)
  assert got["cut_off_nats"] == pytest.approx(14 / 26)
  assert got["reward/rule"] == pytest.approx((3 + 1) / 9)
  totals = [0.5, 2.0, 2.0, 4.0, 1.0, 3.0, 0.5, 2.0, 2.0]
  assert got["reward/mean"] == pytest.approx(np.mean(totals))
  assert got["reward/std"] == pytest.approx(np.std(totals))


def test_a_reward_that_gave_none_is_left_out_of_its_own_mean_alone():
  got = sample_metrics.reward_metrics(
    [batch(rule=[[NAN, NAN, 1], [NAN, 0, NAN], [0] * 3])], [FLAT], NAMES
  )
  assert got["reward/rule"] == pytest.approx(1 / 2)
  assert got["reward/model"] == pytest.approx(9.5 / 6)
  nothing = batch(rule=np.full((P, G), NAN))
  assert np.isnan(sample_metrics.reward_metrics([nothing], [FLAT], NAMES)["reward/rule"])


def test_a_reward_of_weight_0_has_a_mean_of_all_completions():
  """Takes completions that it alone judges, one of them or all, for which nothing is `given`."""
  given = np.arange(L) == np.array(LENGTHS)[..., None] - 1
  some = sample_metrics.reward_metrics(
    [batch(given=given & ~np.eye(P, G, dtype=bool)[..., None])], [FLAT], NAMES
  )
  assert some["reward/rule"] == pytest.approx(3 / 6)
  assert some["reward/mean"] == pytest.approx(np.mean([2.0, 2.0, 4.0, 3.0]))
  none = sample_metrics.reward_metrics([batch(given=given & False)], [FLAT], NAMES)
  assert none["reward/rule"] == pytest.approx(3 / 6) and "reward/mean" not in none


def test_rewards_of_steps_are_counted_and_added_up():
  lengths = np.array(LENGTHS, np.int32)
  given = np.arange(L) < lengths[..., None]  # on each token
  rewards = np.where(given, 0.5, 99).astype(np.float32)
  got = sample_metrics.reward_metrics([batch(given=given, rewards=rewards)], [FLAT], NAMES)
  assert got["rewards_given"] == pytest.approx(14 / 6)
  assert got["reward/mean"] == pytest.approx(0.5 * 14 / 6)


def test_tokens_of_an_environment_are_not_counted():
  """`tokens`, what was cut off and lengths are of what the policy sampled."""
  sampled = np.arange(L) < np.array(LENGTHS)[..., None]
  sampled[1, 0, 1:3] = False
  played = batch(sampled=sampled)
  got = sample_metrics.reward_metrics([played], [FLAT], NAMES)
  assert got["tokens"] == 12 and got["cut_off_nats"] == pytest.approx(7.0 / 12)
  one, other = (
    sample_metrics.agreement_metrics([b], NAMES, [], "")["length/reward_correlation"]
    for b in (played, batch(lengths=[[1, 2, 3], [2, 2, 2], [0] * 3]))
  )
  assert one == pytest.approx(other)


def test_without_a_completion_there_are_counts_alone():
  empty = batch(lengths=np.zeros((P, G)))
  assert sample_metrics.reward_metrics([empty], [np.ones(P, bool)], NAMES) == {
    "tokens": 0,
    "reward_faults": 0,
    "zero_variance": 0.0,
  }
  assert sample_metrics.agreement_metrics([empty], NAMES, ["model"], "rule") == {}


def test_what_was_cut_off_is_not_counted_of_an_empty_prompt():
  """As the sampler itself returns it: one of its eight prompts only fills the batch."""
  sampled = tiny.sample(top_k=3)
  zeros = np.zeros(sampled.tokens.shape, np.float32)
  scored = dataclasses.replace(sampled, rewards=zeros, given=zeros > 0, components=zeros[..., :1])
  one = groups.Scored([None] * tiny.P, scored, [], collect.cut_off(scored))
  numbers = sample_metrics.reward_metrics([one], [np.ones(tiny.P, bool)], ["given"])
  real = tiny.real(sampled)
  assert (sampled.prompts.lengths == 0).sum() == 1
  cut_off = (sampled.truncated_logprobs - sampled.sampler_logprobs)[real]
  assert numbers["cut_off_nats"] == pytest.approx(cut_off.mean(), rel=1e-5)


# -- how rewards agree


def test_agreement_is_of_pairs_that_the_rule_orders():
  """Right over wrong: 1.0 > 0.5 and 1.0 < 2.0 in the first group; 3 > 1 and 2 > 1 in the second."""
  got = sample_metrics.agreement_metrics([batch()], NAMES, ["model"], "rule")
  lengths = np.array([-1, 0, 1, 4 / 3, -2 / 3, -2 / 3])
  totals = np.array([-1, 0.5, 0.5, 4 / 3, -5 / 3, 1 / 3])
  size = np.sqrt((lengths**2).sum() * (totals**2).sum())
  assert got == {
    "length/reward_correlation": pytest.approx((lengths * totals).sum() / size),
    "agreement/model": 3 / 4,
  }
  twice = sample_metrics.agreement_metrics([batch(), batch(model=RULE)], NAMES, ["model"], "rule")
  assert twice["agreement/model"] == 7 / 8


@pytest.mark.parametrize(("learned", "rule"), [([], "rule"), (["model"], ""), (["model"], "other")])
def test_without_a_model_or_a_rule_there_is_no_agreement(learned, rule):
  got = sample_metrics.agreement_metrics([batch()], NAMES, learned, rule)
  assert set(got) == {"length/reward_correlation"}
  assert sample_metrics.disagreement(batch(), NAMES, learned, rule) is None


def test_metrics_without_anything_to_compare_are_left_out():
  """All lengths are equal, and the rule ties all."""
  even = batch(rule=np.ones((P, G)), lengths=[[2, 2, 2], [3, 3, 3], [0, 0, 0]])
  assert sample_metrics.agreement_metrics([even], NAMES, ["model"], "rule") == {}


def test_a_completion_without_a_reward_has_no_part_in_the_correlation():
  given = batch().rollouts.given.copy()
  given[0, 0] = given[1, 0] = False
  got = sample_metrics.agreement_metrics([batch(given=given)], NAMES, [], "")
  # what is left has equal totals in one group, and equal lengths in the other
  assert got == {"length/reward_correlation": 0.0}


def test_disagreement_is_the_difference_of_ranks():
  """The best by the model alone is near 1, the best by the rule alone near -1."""
  got = sample_metrics.disagreement(batch(), NAMES, ["model"], "rule")
  np.testing.assert_allclose(got[0], [0 - 0.25, 1 - 0.25, 0.5 - 1])
  np.testing.assert_allclose(got[1], [1 - 0.75, 0 - 0, 0.5 - 0.75])
  assert np.isnan(got[2]).all()  # it only fills the batch


def test_of_several_models_the_one_that_differs_most_counts():
  one = batch(rule=[[0, 0, 1], [1, 0, 1], [0] * 3], model=[[0, 0, 1], [0, 1, 0], [0] * 3])
  third = np.array([[[1], [0], [0]], [[1], [0], [1]], [[0], [0], [0]]], np.float32)
  components = np.concatenate([one.rollouts.components, third], axis=2)
  both = one._replace(rollouts=dataclasses.replace(one.rollouts, components=components))
  names = [*NAMES, "other"]
  got = sample_metrics.disagreement(both, names, ["model", "other"], "rule")
  np.testing.assert_allclose(got[0], [1 - 0.25, 0, 0.25 - 1])  # of `other`: `model` is the rule
  np.testing.assert_allclose(got[1], [-0.5, 1, -0.5])  # of `model`: `other` is the rule


def test_judged_components_are_nan_where_nothing_was_sampled():
  one = batch(lengths=[[1, 0, 3], [4, 2, 2], [0, 0, 0]])
  got = sample_metrics.judged_components(one.rollouts)
  assert np.isnan(got[0, 1]).all() and np.isnan(got[2]).all()
  np.testing.assert_array_equal(got[0, 2], [1, 1.0])
  np.testing.assert_array_equal(got[1], one.rollouts.components[1])
