"""Tests what a run collects its batches with: data one by one or from a pool, and who scores."""

import types

import pytest

from grpo_jax.data.pool import Pool
from grpo_jax.errors import DataError
from grpo_jax.loops import collector
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.types import Example


def batches(config):
  experiment = make(config)
  return collector.make_batches(experiment, build.model(experiment))


def test_a_batch_is_one_example_where_groups_are_carried(config):
  config.data.prompts = 4
  assert len(next(batches(config))) == 4
  config.sampler.carry = 2
  assert len(next(batches(config))) == 1


def test_a_pool_gives_batches_of_the_same_size(config):
  config.data.prompts, config.data.redraw = 4, 0.5
  config.rewards.functions = (("correct", config.eval.reward, 1.0),)
  made = batches(config)
  assert isinstance(made, Pool) and len(next(made)) == 4


def examples(meta):
  return types.SimpleNamespace(first=lambda count: [Example("q", "s", "1", meta)] * count)


def test_workers_are_made_only_of_examples_that_can_be_sent(config):
  config.rewards.workers = 2
  experiment = make(config)
  made = collector.make_workers(experiment, examples({"parts": [1, 2]}))
  assert made is not None and made.single == [name for name, *_ in config.rewards.functions]
  with pytest.raises(DataError, match="^rewards.workers: examples are sent as JSON.*workers=0$"):
    collector.make_workers(experiment, examples({"parts": {1, 2}}))
  config.rewards.workers = 0
  assert collector.make_workers(make(config), examples({"parts": {1, 2}})) is None
