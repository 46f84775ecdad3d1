"""What cannot succeed is refused before anything is compiled, or warned of in a line that says what
to change.
"""

import pathlib

import jax
import pytest
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.evaluation import evaluator
from grpo_jax.loops import collector
from grpo_jax.run import compile_cache
from grpo_jax.run.writer import Writer
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.types import Example

# -- before anything is compiled


def test_prompts_that_all_are_too_long(config):
  config.data.max_prompt_length = 3
  model = build.model(make(config))
  with pytest.raises(
    SettingError, match=r"max_prompt_length=3 \(data.name\): the first 32 prompts have \d+ to \d+"
  ):
    collector.make_collector(make(config), model)
  with pytest.raises(SettingError, match=r"data.max_prompt_length=3 \(eval.problems\)"):
    evaluator.Evaluator(make(config), model)
  config.data.on_long = "cut"
  collector.make_collector(make(config), model)
  found = evaluator.Evaluator(make(config), model)
  assert found.greedy.on_long == found.sampled.on_long == "cut"
  ((about, text),) = found.warnings({"prompts_too_long": 2})
  assert about == "eval.problems" and text.startswith(
    "2 of 4 test prompts have more than data.max_prompt_length=3"
  )


def test_a_reward_that_changes_settings_of_jax_has_them_changed_back(capsys):
  deadline._warned.clear()
  before = dict(jax.config.values)
  for _ in range(2):
    with compile_cache.same_settings("a reward"):
      jax.config.update("jax_enable_x64", True)
      jax.config.update("jax_default_matmul_precision", "highest")
    assert dict(jax.config.values) == before
  said = "warning: a reward changed jax's setting jax_enable_x64 to True, which was changed back\n"
  assert said in (out := capsys.readouterr().out) and out.count("\n") == 2


def test_a_reward_that_refuses_its_settings(config):
  keywords = {"max_length": 8, "buffer": 9}
  config.rewards.functions = (("overlong", "length.overlong", 1.0, keywords),)
  with pytest.raises(SettingError, match="overlong with buffer=9: use 1 to max_length=8"):
    collector.make_collector(make(config), build.model(make(config)))
  config.rewards.functions = (("mine", f"{__file__}:leaves", 1.0),)
  collector.make_collector(
    make(config), build.model(make(config))
  )  # it may work on what is sampled


def leaves(example: Example, completion):
  raise SystemExit(0)


# -- during a run


def test_a_warning_is_given_once(tmp_path: pathlib.Path, capsys):
  log = ConfigDict(
    {"writers": (), "every": 1, "samples": 0, "samples_every": 0, "bucket_seconds": 60.0}
  )
  with Writer(str(tmp_path), log, 3) as writer:
    for about, text in (("a", "one"), ("a", "two"), ("b", "three")):
      writer.warn(about, text)
    writer.step(0, {"reward/mean": 1.0, "reward_faults": 3})
  out = capsys.readouterr().out
  assert "warning: one" in out and "two" not in out and "warning: three" in out
  assert "failed rewards 3" in out
