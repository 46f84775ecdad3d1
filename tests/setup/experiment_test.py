"""Experiments: checked settings, and what their names stand for."""

import dataclasses

import pytest
from ml_collections import ConfigDict

from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import changed, make


def test_the_rule_is_what_labels_or_what_evaluates():
  limits = {"max_length": 8, "buffer": 2}
  functions = (("short", "length.overlong", 1.0, limits), ("right", "math.answer_correct", 0.0, {}))
  config = defaults.get_config()
  config.rewards.functions = functions
  config.iterative.labels = "short"
  assert make(config).rule == "right"
  config.loop = "iterative"
  assert make(config).rule == "short"
  config.loop, config.eval.reward = "online", "boxed.boxed_correct"
  assert make(config).rule == ""


def test_the_rule_has_the_arguments_of_what_evaluates():
  rows = [("strict", {"pattern": "#### (.+)"}), ("loose", {"pattern": "([0-9]+)"})]
  config = defaults.get_config()
  config.rewards.functions = [(name, "pattern.pattern_correct", 1.0, how) for name, how in rows]
  config.eval.reward = "pattern.pattern_correct"
  config.eval.arguments = (("pattern", "([0-9]+)"),)
  assert make(config).rule == "loose"
  config.eval.arguments = (("pattern", "(.*)"),)
  assert make(config).rule == ""


def test_what_was_written_afterwards_changes_no_experiment():
  config = defaults.get_config()
  made = make(config)
  config.steps, config.learner.lr = 7, 7.0
  assert (made.steps, made.learner.lr) == (made.config.steps, made.config.learner.lr) != (7, 7.0)
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.steps = 7


def test_a_changed_experiment_has_the_other_settings_of_the_first():
  config = defaults.get_config()
  config.seed = 3
  first = make(config)
  other = changed(first, {"steps": 7, "learner.lr": 0.5})
  assert (other.seed, other.steps, other.learner.lr) == (3, 7, 0.5)
  assert first.steps != 7 and first.config.learner.lr != 0.5


@pytest.mark.parametrize(
  ("loop", "data", "source", "completions"),
  [
    ("online", "pairs", "live", 8),
    ("iterative", "pairs", "live", 8),
    ("offline", "pairs", "pairs", 2),
    ("offline", "solutions", "solutions", 1),
    ("offline", "samples", "samples", 8),
  ],
)
def test_where_completions_come_from_and_how_many(loop, data, source, completions):
  config = defaults.get_config()
  config.loop, config.offline.data, config.sampler.group = loop, data, 8
  made = make(config)
  assert (made.source, made.completions) == (source, completions)
  assert bool(made.reward_functions) == (source != "solutions")


def test_a_section_made_by_hand_may_hold_whole_numbers_and_lists():
  config = defaults.get_config()
  with config.ignore_type():
    config.learner = ConfigDict({**config.learner.to_dict(), "lr": 0})
    config.objective.reward_weights = []
  made = changed(make(config), {"learner.lr": 1e-4})
  assert made.learner.lr == 1e-4 and made.objective.cfg.reward_weights == ()


def test_what_the_caller_changes_later_changes_nothing():
  config = defaults.get_config()
  made = make(config)
  config.data.arithmetic.size = 1
  assert made.train_data[0].cfg.size > 1
  with pytest.raises(AttributeError):
    made.config.no_such_setting = 3
