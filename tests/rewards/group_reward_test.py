"""Rewards that look at a whole group: how they are known, what they give, their faults, where they
are refused.
"""

import re
import time

import numpy as np
import pytest
from ml_collections import ConfigDict

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.loops import collect
from grpo_jax.rewards import attempts, combine, group
from grpo_jax.setup import scorers
from grpo_jax.types import STOPPED, Completion, Example

EXAMPLE = Example("?", "#### 72", "72", {})


def written(tokens: int, text: str = "") -> Completion:
  return Completion(text, list(range(tokens)), STOPPED, [tokens - 1])


def by_rank(example, completions, *, top=1.0):
  """The longest gets `top`, the others less by one each."""
  lengths = sorted((len(c.tokens) for c in completions), reverse=True)
  return [top - lengths.index(len(c.tokens)) for c in completions]


def one(example, completion):
  return 10.0


GROUP = [written(2), written(4), None, written(3)]  # the third is another process's


def test_it_is_known_by_the_name_of_its_second_parameter():
  assert attempts.looks_at_group(by_rank) and attempts.looks_at_group(group.shortest_correct)
  assert not attempts.looks_at_group(one) and not attempts.looks_at_group(lambda *completions: 0.0)
  assert not attempts.looks_at_group(
    lambda completions, example: 0.0
  ) and not attempts.looks_at_group(max)
  functions = (("rank", f"{__file__}:by_rank", 2.0, {"top": 5}), ("one", f"{__file__}:one", 1.0))
  ranked, plain = scorers.reward_functions(settings.Rewards(functions=functions), [])
  bound, weight, single = ranked.reward.score, ranked.weight, plain.reward.score
  assert attempts.looks_at_group(bound) and not attempts.looks_at_group(single)
  assert bound(EXAMPLE, [written(1)]) == [5.0] and weight == 2.0


def test_each_completion_gets_its_number_on_its_last_token_beside_other_rewards():
  rewards = [("rank", by_rank, 2.0), ("one", one, 0.5)]
  scores = combine.score(rewards, [EXAMPLE, None], [GROUP, [None] * 4], 4)
  np.testing.assert_array_equal(scores.components[0], [[-1, 10], [1, 10], [0, 0], [0, 10]])
  np.testing.assert_array_equal(
    scores.rewards[0], [[0, 3, 0, 0], [0, 0, 0, 7], [0] * 4, [0, 0, 5, 0]]
  )
  assert scores.given.sum() == 3 and not scores.faults


def test_it_sees_completions_that_another_process_scores():
  whole = [[written(2), written(4), written(5), written(3)]]
  scores = combine.score([("rank", by_rank, 1.0)], [EXAMPLE], [GROUP], 8, groups=whole)
  np.testing.assert_array_equal(scores.components[0, :, 0], [-2, 0, 0, -1])
  assert scores.given.sum(axis=(0, 2)).tolist() == [1, 1, 0, 1]


def test_the_shares_of_all_processes_make_whole_groups(monkeypatch):
  theirs = [[None, None, written(7), None]]
  monkeypatch.setattr(collect.hosts, "gather", lambda own: [own, theirs])
  assert collect.whole_groups([GROUP]) == [[written(2), written(4), written(7), written(3)]]


@pytest.mark.parametrize(
  "returns, message",
  [
    ([1.0, 2.0], "ValueError: returned 2 values for 3 completions"),
    (1.0, "TypeError: returned 1.0, which is no list of 3 numbers, one for each completion"),
    (None, "TypeError: returned None, which is no list of 3 numbers, one for each completion"),
    ([1.0, "a", 2.0], "TypeError: returned 'a', which is no number"),
    ([1.0, None, 2.0], "TypeError: returned None, which is no number"),
    ([1.0, [(0, 1.0)], 2.0], "TypeError: returned [(0, 1.0)], which is no number"),
    ([1.0, float("nan"), 2.0], "ValueError: returned nan, which is no finite reward"),
    (np.ones((3, 2)), "TypeError: returned array([1., 1.]), which is no number"),
  ],
)
def test_what_is_no_list_of_as_many_numbers_is_a_fault_of_the_whole_group(returns, message):
  broken, fine = [EXAMPLE, Example("fine", "", "1", {})], [[written(1)] * 3] * 2

  def reward(example, completions):
    return np.array([1, 2, 3]) if example.question == "fine" else returns

  scores = combine.score([("odd", reward, 2.0), ("one", one, 1.0)], broken, fine, 1, on_error=-7.0)
  assert scores.faults == [combine.Fault(0, g, "odd", message) for g in range(3)]
  np.testing.assert_array_equal(scores.rewards[..., 0], [[-4] * 3, [12, 14, 16]])
  with pytest.raises(SettingError, match="'odd' failed on all 3 completions"):
    combine.check_some_worked(scores.faults, 3)


def test_a_late_group_is_a_fault_and_groups_that_are_always_late_end_the_run():
  def slow(example, completions):
    time.sleep(60 if len(completions[0].tokens) < 3 else 0)
    return [1.0] * len(completions)

  # The first of a group may be missing: what went wrong is looked for in the whole group.
  groups = [[None, written(1)], [None, written(4)], *[[None, written(1)]] * 9]
  scores = combine.score([("slow", slow, 1.0)], [EXAMPLE] * 3, groups[:3], 4, deadline=0.3)
  assert [(f.prompt, f.message) for f in scores.faults] == [
    (p, "took longer than 0.3 s (rewards.deadline)") for p in (0, 2)
  ]
  with pytest.raises(
    SettingError, match="'slow' took longer than .* on each of the first 5 groups"
  ):
    combine.score([("slow", slow, 1.0)], [EXAMPLE] * 9, groups[2:], 4, deadline=0.3)


def test_an_evaluation_refuses_it_by_name():
  said = "eval.reward='group.shortest_correct' with eval.arguments=(): looks at a group"
  with pytest.raises(SettingError, match=re.escape(said)):
    scorers.eval_reward(ConfigDict({"reward": "group.shortest_correct", "arguments": ()}))


def test_nothing_is_scored_ahead_where_there_is_nothing_to_score():
  """Stands for a host that has none of a batch's completions."""
  combine.ahead([lambda pairs: 1 / 0], [None], [[None]])


def test_scoring_ahead_has_the_time_of_all_that_it_stands_for(tmp_path):
  """And what goes wrong there is one line."""

  def ahead(pairs):
    time.sleep(60)

  pair = [EXAMPLE], [[written(1), written(2)]]
  start = time.perf_counter()
  with pytest.raises(
    SettingError,
    match=r"score_ahead of rewards.group_reward_test failed on 2 completions.*than 0.2 s",
  ):
    combine.ahead([ahead], *pair, deadline=0.1)
  assert 0.2 < time.perf_counter() - start < 30
  with pytest.raises(
    SettingError, match=r"score_ahead of rewards.group_reward_test failed on 2 .*ZeroDivisionError"
  ):
    combine.ahead([lambda pairs: 1 / 0], *pair)
