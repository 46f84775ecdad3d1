"""A learned reward beside the rule: how far they agree, what is logged and kept of it, and when a
run is warned.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.evaluation import evaluator
from grpo_jax.loops import groups, sample_metrics
from grpo_jax.reward_models import agreement
from grpo_jax.reward_models import rewards as model_rewards
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.run import watch
from grpo_jax.setup import build, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.types import STOPPED, Prompts, Rollouts

NAN = float("nan")


def test_the_area_is_the_share_of_right_ones_above_wrong_ones():
  scores, right = np.array([2.0, 1.0, 1.0, 0.0, NAN]), np.array([True, True, False, False, False])
  assert agreement.area(scores, right) == pytest.approx((2 + 1.5) / 4)
  assert math.isnan(agreement.area(scores, right | True)) and math.isnan(
    agreement.area(scores[4:], right[4:])
  )


def test_pairs_are_of_one_group_and_of_different_rule_rewards():
  rng = np.random.default_rng(0)
  learned, rule = rng.integers(0, 4, (5, 4)).astype(float), rng.integers(0, 3, (5, 4)).astype(float)
  learned[0, 1], rule[1, 2], rule[2] = NAN, NAN, 1.0
  want = []
  for p, (g, h) in itertools.product(range(5), itertools.permutations(range(4), 2)):
    if rule[p, g] > rule[p, h] and not np.isnan(learned[p, g] - learned[p, h]):
      want.append(
        1.0 if learned[p, g] > learned[p, h] else 0.5 if learned[p, g] == learned[p, h] else 0.0
      )
  assert 0 < want.count(0.5) < len(want)
  assert agreement.pairs_in_order(learned, rule) == pytest.approx(np.mean(want))
  # scores of one prompt mean nothing beside those of another
  shifted = learned + 100 * np.arange(5)[:, None]
  assert agreement.pairs_in_order(shifted, rule) == agreement.pairs_in_order(learned, rule)
  assert math.isnan(agreement.pairs_in_order(learned, rule * 0))


def test_disagreement_is_a_difference_of_ranks():
  learned = np.array([[5.0, 1.0, 2.0, 3.0], [1.0, 2.0, NAN, 3.0], [1.0, NAN, NAN, NAN]])
  rule = np.array([[0.0, 1.0, 0.0, 0.0], [1.0, NAN, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
  want = [[1 - 1 / 3, 0 - 1, 0.0, 2 / 3 - 1 / 3], [0 - 1, NAN, NAN, 1 - 0], [NAN] * 4]
  np.testing.assert_allclose(agreement.disagreement(learned, rule), want)


def test_the_correlation_is_within_groups():
  rng = np.random.default_rng(1)
  x, y = rng.normal(size=(6, 5)), rng.normal(size=(6, 5))
  a, b = (z - z.mean(1, keepdims=True) for z in (x, y))
  found = agreement.correlation_in_groups(
    x + 10 * np.arange(6)[:, None], y - 7 * np.arange(6)[:, None]
  )
  assert found == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1])
  y[2, 1] = NAN
  a[2], b[2] = (z[2] - z[2, [0, 2, 3, 4]].mean() for z in (x, y))
  a[2, 1] = b[2, 1] = 0.0
  assert agreement.correlation_in_groups(x, y) == pytest.approx(
    (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())
  )
  tied = np.full((6, 3), 0.1)
  # no noise of rounding
  assert tied.mean(1)[0] != 0.1 and math.isnan(agreement.correlation_in_groups(x[:, :3], tied))
  assert math.isnan(agreement.correlation_in_groups(x, y * NAN))


# -- in a run


def judged(rule: str = "correct", models: tuple[str, ...] = ("judge", "other")):
  """A collector, and a batch of three groups with components correct, short, judge, other; the
  third only fills it.
  """
  collector = types.SimpleNamespace(
    names=["correct", "short", *models],
    learned=list(models),
    models=[None] * len(models),
    rule=rule,
  )
  of = {
    "correct": [[1, 0, 0], [1, 1, 0], [0, 0, 0]],
    "short": [[1, 2, 3], [3, 2, 1], [0, 0, 0]],
    "judge": [[3, 2, 2], [0, NAN, 1], [0, 0, 0]],
    "other": [[1, 2, 2], [2, NAN, 1], [0, 0, 0]],
  }
  components = np.stack([np.array(of[name], np.float32) for name in collector.names], axis=2)
  lengths = np.array([[2, 3, 4], [1, 1, 5], [0, 0, 0]], np.int32)
  rewards = np.zeros((3, 3, 5), np.float32)
  rewards[..., 0] = [[1, 2, 3], [5, 5, 1], [9, 9, 9]]
  given = (np.arange(5) == 0) & (lengths > 0)[..., None]
  given[1, 1] = False
  prompts, empty = (
    Prompts(np.ones((3, 2), np.int32), np.array([2, 2, 0], np.int32)),
    np.zeros((3, 3, 5), np.float32),
  )
  r = Rollouts(
    prompts, empty, lengths, lengths * 0 + STOPPED, empty, empty, rewards, given, components
  )
  return collector, groups.Scored([None] * 3, r, [], 0.0)


def agreement_metrics(batches, c):
  return sample_metrics.agreement_metrics(batches, c.names, c.learned, c.rule)


def disagreement(batch, c):
  return sample_metrics.disagreement(batch, c.names, c.learned, c.rule)


def test_a_step_logs_agreement_with_the_rule_and_length_against_reward():
  collector, batch = judged()
  numbers = agreement_metrics([batch, batch], collector)
  a, b = np.array([-1, 0, 1, -2, 2]), np.array([-1, 0, 1, 2, -2])  # one was given nothing
  assert numbers == {
    "length/reward_correlation": pytest.approx((a * b).sum() / (a**2).sum()),
    "agreement/judge": pytest.approx(2 / 3),
    "agreement/other": pytest.approx(1 / 3),
  }
  assert set(agreement_metrics([batch], judged(models=())[0])) == {"length/reward_correlation"}
  assert set(agreement_metrics([batch], judged(rule="")[0])) == {"length/reward_correlation"}
  nothing = batch._replace(
    rollouts=dataclasses.replace(batch.rollouts, given=batch.rollouts.given & False)
  )
  nothing.rollouts.components[..., 2:] = NAN
  assert agreement_metrics([nothing], collector) == {}


def test_a_sample_has_the_disagreement_of_the_model_that_differs_most():
  collector, batch = judged()
  # Ranks by correct: 1 1/4 1/4 and, of what has both, 1 - 0; by judge: 1 1/4 1/4, 0 - 1; by other:
  # 0 3/4 3/4, 1 - 0.
  np.testing.assert_allclose(
    disagreement(batch, collector), [[-1, 0.5, 0.5], [-1, NAN, 1], [NAN] * 3]
  )
  assert disagreement(batch, judged(models=())[0]) is None
  assert disagreement(batch, judged(rule="")[0]) is None


def test_scoring_an_evaluation_takes_no_more_memory_than_learning():
  config = defaults.get_config()
  (
    config.data.prompts,
    config.sampler.group,
    config.learner.microbatch,
    config.learner.minibatches,
  ) = 16, 4, 4, 2
  for batch, group, cuts in ((16, 1, 1), (32, 1, 2), (48, 1, 3), (40, 2, 5), (14, 16, 14)):
    config.eval.batch = batch
    assert evaluator.judging_sizes(make(config), tiny.layout(), group).microbatches == cuts, batch


def odd(example, completion):
  return len(completion.tokens) % 2


@pytest.mark.long
@pytest.mark.slow
def test_an_evaluation_asks_the_reward_models_as_they_are_now(monkeypatch):
  """An outcome and a process reward model, on a mesh that cuts prompts and samples; without any
  nothing is computed.
  """
  config = defaults.get_config()
  config.tokenizer, config.model.variant, config.mesh.group = "words", "test_qwen3", 2
  config.data.arithmetic.size, config.sampler.max_length, config.sampler.stop = (
    32,
    8,
    tuple("0123456789"),
  )
  config.eval.problems, config.eval.batch, config.eval.samples = 6, 4, 0
  config.eval.reward = f"{__file__}:odd"
  model, scorer = build.model(make(config)), build.model(make(config), scores=True)
  params = model.load()
  # the head of a new one is 0
  weights = jax.tree.map(lambda x: jnp.where(x == 0, 0.1, x), scorer.load())
  models = [
    RewardModel(name, 1.0, name == "steps", scorer.decoder, weights) for name in ("judge", "steps")
  ]
  written = {}
  writer = types.SimpleNamespace(
    phase=lambda name: contextlib.nullcontext(),
    progress=lambda *_: None,
    evaluation=lambda step, numbers: written.update({step: numbers}),
  )
  evaluate = evaluator.Evaluator(make(config), model, lambda: models)
  found = evaluate(writer, params, 1)
  assert found["reward/judge"] != 0 and 0 < found["reward/steps"] < 1
  assert {"eval/accuracy", "eval/reward/judge", "eval/reward/steps"} <= set(written[1])
  models[0] = models[0]._replace(params=jax.tree.map(lambda x: -2 * x, weights))
  again = evaluate(writer, params, 2)
  assert (
    again["reward/judge"] != found["reward/judge"]
    and again["reward/steps"] == found["reward/steps"]
  )
  monkeypatch.setattr(model_rewards, "judge", None)
  models.clear()
  assert set(evaluate(writer, params, 3)) == {"accuracy", "length", "truncated"}


# -- warnings


class Writer:
  """Keeps the first warning about each thing, as that of a run does."""

  def __init__(self):
    self.said = {}

  def warn(self, about: str, text: str) -> None:
    self.said.setdefault(about, text)


def said(learned, rule, agreement=0.8) -> list[str]:
  """What is said of a run whose steps have these means of a learned reward and of the rule."""
  writer, look, rng = (
    Writer(),
    watch.Watch("sampler.max_length=96", "correct"),
    np.random.default_rng(0),
  )
  for a, b in zip(learned, rule):
    numbers = {"judge": rng.normal(a, 0.1), "correct": rng.normal(b, 0.02)}
    of = {"agreement/judge": rng.normal(agreement, 0.05)}
    look({f"reward/{name}": value for name, value in numbers.items()} | of, writer)
    look({"reward/judge": None, "reward/correct": NAN}, writer)  # a step in which nothing was given
  return list(writer.said.values())


RISES, FALLS, LEVEL = np.linspace(0.0, 1.0, 40), np.linspace(0.8, 0.5, 40), np.full(150, 0.8)
BETTER = FALLS[::-1]


def test_a_learned_reward_that_rises_while_the_rule_falls_is_warned_of():
  (text,) = said([*RISES, *RISES + 1], [*BETTER, *FALLS])
  found = re.match(
    r"reward/judge has risen from (\S+) to (\S+), and reward/correct fallen from (\S+) to (\S+),",
    text,
  )
  before, now, best, fallen = map(float, found.groups())
  assert 0.8 < before < 1.2 < now < 2.0 and 0.5 < fallen < 0.75 < best < 0.85
  assert "objective.beta" in text and "sort samples.html by disagreement" in text


@pytest.mark.parametrize(
  ("learned", "rule"),
  [
    ([*RISES, *RISES + 1], [*BETTER, *LEVEL]),
    (np.linspace(0, 3, 190), [*BETTER, *LEVEL]),
    (-RISES, FALLS),
    (0 * LEVEL, LEVEL),
  ],
)
def test_a_run_with_a_good_reward_model_is_not_warned_of(learned, rule):
  assert not said(learned, rule)
