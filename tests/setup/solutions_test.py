"""Tests the scoring of worked solutions before a run starts."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults, solutions
from grpo_jax.types import Example

EXAMPLE = Example("2 + 3?", "2 + 3 = 5\n#### 5", "5", {})


class Words:
  """Stands in for a tokenizer."""

  encode = staticmethod(lambda text: [1, 2])
  step_ends = staticmethod(lambda ids: [len(ids) - 1])


class Model:
  """Stands in for a model, of which a tokenizer is asked."""

  tokenizer = Words()
  end = staticmethod(lambda: 0)


def by_rank(example, completions):
  return [float(rank) for rank, _ in enumerate(completions)]


def test_a_solution_is_seen_as_a_completion_with_its_end_token():
  written = solutions.worked_solution(EXAMPLE, Model)
  assert written.text == EXAMPLE.solution and list(written.tokens) == [1, 2, 0]


def test_a_reward_that_no_solution_fits_is_refused():
  config, tried = defaults.get_config(), []

  def first_only(example, completion):
    tried.append(example)
    if len(tried) > 1:
      raise ValueError("no number")
    return 1.0

  solutions.check_eval_reward(first_only, [EXAMPLE] * 3, Model, config)
  with pytest.raises(SettingError, match="eval.reward=.*cannot score the test data: .*no number"):
    solutions.check_eval_reward(first_only, [EXAMPLE] * 20, Model, config)
  assert len(tried) == 3 + solutions.FIRST_SOLUTIONS


def test_a_reward_of_groups_is_tried_on_one():
  """Makes a group as large as those of the run; a SettingError comes through, anything else is told and
  is no reason to stop.
  """

  def refuses(example, completions):
    raise SettingError(f"refuses {len(completions)}")

  config = defaults.get_config()
  assert solutions.try_reward(by_rank, [EXAMPLE], Model, config) == [""]
  assert solutions.try_reward(lambda example, completions: [], [EXAMPLE], Model, config) == [
    "ValueError: returned 0 values for 8 completions"
  ]
  with pytest.raises(SettingError, match="refuses 8"):
    solutions.try_reward(refuses, [EXAMPLE], Model, config)
