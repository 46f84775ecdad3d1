"""What all verifiers have in common: they vote, and are known before a batch is scored."""

from fractions import Fraction

import pytest
from ml_collections import ConfigDict

from grpo_jax.config import settings
from grpo_jax.evaluation import policy
from grpo_jax.rewards import choice, combine, steps
from grpo_jax.setup import scorers
from grpo_jax.types import STOPPED, Completion, Example


def example(answer):
  return Example("?", "", answer, {})


def completion(text, ended=STOPPED):
  return Completion(text, [1, 2], ended, [])


def section(functions=(), reward="math.answer_correct", arguments=()):
  models = {"outcome_models": (), "process_models": ()}
  return ConfigDict({"functions": functions, "reward": reward, "arguments": arguments, **models})


@pytest.mark.parametrize(
  "reward, arguments, texts, votes",
  [
    ("math.answer_correct", (), ["#### 7", "#### **7.0**", "7"], [7, 7, None]),
    ("choice.choice_correct", (), ["#### b", "(B).", "so B"], ["B", "B", None]),
    ("option.option_correct", (), ["#### b", "the answer is B", "so"], ["B", "B", None]),
    ("exact.exact_match", (("case", False),), ["New York", "new  york"], ["new york", "new york"]),
    (
      "pattern.pattern_correct",
      (("pattern", "is (.*)"),),
      ["is 7", "is 7.0", "x"],
      [Fraction(7)] * 2 + [None],
    ),
    (
      "boxed.boxed_correct",
      (),
      ["\\boxed{1/2}", "\\boxed{0.5}", "0.5"],
      [Fraction(1, 2)] * 2 + [None],
    ),
  ],
)
def test_every_verifier_votes(reward, arguments, texts, votes):
  answer_of = scorers.eval_reward(section(reward=reward, arguments=arguments)).answer_of
  assert [answer_of(completion(text)) for text in texts] == votes
  assert policy.majority([True, True, False][: len(votes)], votes) == 1.0


def test_others_do_not_vote():
  assert scorers.eval_reward(section(reward="format.worked")).answer_of is None
  assert steps.answer_of(completion("#### 7")) == 7 and choice.answer_of(completion("x y")) is None


def test_a_batch_is_known_before_it_is_scored():
  seen = []
  group = [completion("a"), None, Completion("", [], STOPPED, [])]
  combine.ahead([seen.append], [example("7"), None], [group, group])
  assert seen == [[(example("7"), completion("a"))]]
  functions = (("a", "boxed.boxed_correct", 1.0), ("b", "math.answer_correct", 1.0))
  boxed, math = scorers.reward_functions(settings.Rewards(functions=functions), [])
  assert boxed.reward.score_ahead.__name__ == "score_ahead" and math.reward.score_ahead is None
