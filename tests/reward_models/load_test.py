"""Loading the reward models of a run."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.loops import collector
from grpo_jax.reward_models import load
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.tokenizer import making


def test_a_judge_of_another_tokenizer(config):
  ours = build.model(make(config))
  theirs = ours._replace(tokenizer=making.word_level(["other words"]))
  load.check_tokenizer(ours, ours, "here")
  with pytest.raises(SettingError, match="^here: has another tokenizer than the policy"):
    load.check_tokenizer(ours, theirs, "here")


def test_what_is_held_out_leaves_some_to_learn_from(config):
  model = build.model(make(config))
  size = build.batches(make(config), model).size
  config.offline.held_out = size
  with pytest.raises(
    SettingError, match=f"^offline.held_out={size}: the data have {size} ex.*less"
  ):
    collector.check_collector(make(config), model)
  config.offline.held_out = size - 1
  collector.check_collector(make(config), model)


def test_a_check_reads_no_weights_of_reward_models(config, monkeypatch):
  loads = []
  monkeypatch.setattr(load, "_check_model", lambda *_: lambda: loads.append("judge"))
  config.rewards.outcome_models = (("judge", "folder", 1.0),)
  model = build.model(make(config))
  collector.check_collector(make(config), model)
  assert not loads
  collector.make_collector(make(config), model)
  assert loads == ["judge"]
