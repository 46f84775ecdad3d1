"""The values that pass between the layers."""

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.types import STOPPED, Completion, Example, Prompts, Rollouts, ScoredRollouts


def rollouts() -> Rollouts:
  tokens = np.zeros((2, 3, 4), np.int32)
  prompts = Prompts(np.zeros((2, 5), np.int32), np.ones(2, np.int32))
  counts = np.ones((2, 3), np.int32)
  return Rollouts(prompts, tokens, counts, counts, tokens * 0.5, tokens * 0.5)


def test_rollouts_are_trees_without_what_is_not_known():
  made = rollouts()
  assert len(jax.tree.leaves(made)) == 7
  doubled = jax.tree.map(lambda x: 2 * x, made)
  assert type(doubled) is Rollouts and (doubled.lengths == 2).all() and doubled.rewards is None
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.lengths = 0


def test_scored_rollouts_have_their_rewards():
  fields = {field.name: getattr(rollouts(), field.name) for field in dataclasses.fields(Rollouts)}
  scored = ScoredRollouts(**fields | dict.fromkeys(("rewards", "given", "components"), np.zeros(1)))
  assert isinstance(scored, Rollouts) and len(jax.tree.leaves(scored)) == 10


def test_an_example_cannot_be_changed_and_replaced_ones_neither():
  example = Example("q", "s", "a", {"steps": [1]})
  for each in (example, example._replace(meta={"steps": [2]})):
    with pytest.raises(TypeError, match="cannot be changed"):
      each.meta["steps"].append(3)
    with pytest.raises(AttributeError):
      each.answer = "b"


def test_a_completion_has_tuples():
  completion = Completion("t", np.array([1, 2]), STOPPED, [1])
  for each in (completion, completion._replace(tokens=[1, 2])):
    assert each.tokens == (1, 2) and each.step_ends == (1,)
    assert type(each) is Completion and type(each.tokens) is tuple
