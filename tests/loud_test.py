"""What cannot succeed is refused before anything is compiled, or warned of in a line that says what
to change.
"""

import pathlib

import jax
import pytest
import tiny
from ml_collections import ConfigDict

from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.evaluation import evaluator
from grpo_jax.loops import collect
from grpo_jax.reward_models import load
from grpo_jax.run import compile_cache, watch
from grpo_jax.run.writer import Writer
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, checks, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.tokenizer import making
from grpo_jax.types import Completion, Example


@pytest.fixture
def config() -> ConfigDict:
  c = defaults.get_config()
  c.tokenizer, c.model.variant = "words", "test_qwen3"
  c.data.arithmetic.size = 32
  c.eval.problems = 4
  return c


# -- before anything is compiled


def test_prompts_that_all_are_too_long(config):
  config.data.max_prompt_length = 3
  model = build.model(make(config))
  with pytest.raises(
    SettingError, match=r"max_prompt_length=3 \(data.name\): the first 32 prompts have \d+ to \d+"
  ):
    collect.make_collector(make(config), model)
  with pytest.raises(SettingError, match=r"data.max_prompt_length=3 \(eval.problems\)"):
    evaluator.Evaluator(make(config), model)
  config.data.on_long = "cut"
  collect.make_collector(make(config), model)
  found = evaluator.Evaluator(make(config), model)
  assert found.greedy.on_long == found.sampled.on_long == "cut"
  ((about, text),) = found.warnings({"prompts_too_long": 2})
  assert about == "eval.problems" and text.startswith(
    "2 of 4 test prompts have more than data.max_prompt_length=3"
  )


def test_a_special_token_that_the_model_cannot_embed(config):
  """Gemma 3's text models have such a tokenizer: it is refused only where a template uses the
  token.
  """
  model = build.model(make(config))
  vocab = model.tokenizer.vocab_size
  how = {"template": "{question}" + making.END, "chat": False, "system": "", "arguments": ()}
  assert build._render(model.tokenizer, vocab, how, "has 4")
  special = model.tokenizer.token_id(making.END)
  with pytest.raises(
    SettingError, match=f"data.template: the token {special} of the prompt is none of the model's"
  ):
    build._render(model.tokenizer, special, how | {"template": making.END + "{question}"}, "")


def test_before_and_after_are_compared_by_one_verifier(config):
  config.eval.reward, config.eval.arguments = "exact.exact_match", (("case", True),)
  model = build.model(make(config))
  strict = evaluator.Evaluator(make(config), model).tested()
  config.eval.arguments = (("case", False),)
  assert evaluator.Evaluator(make(config), model).tested() != strict


def test_a_judge_of_another_tokenizer(config):
  ours = build.model(make(config))
  theirs = ours._replace(tokenizer=making.word_level(["other words"]))
  load.check_tokenizer(ours, ours, "here")
  with pytest.raises(SettingError, match="^here: has another tokenizer than the policy"):
    load.check_tokenizer(ours, theirs, "here")


def test_a_chat_without_a_template(config):
  config.data.chat = True
  with pytest.raises(SettingError, match="data.chat=True: this tokenizer has no chat template"):
    collect.make_collector(make(config), build.model(make(config)))


def test_groups_of_one(config):
  config.sampler.group = 1
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.advantage='group_relative' .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective.advantage = f"{__file__}:own"
  checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("ppo", config)  # a critic needs no group
  checks.check(make(config), tiny.decoder())
  config.objective.group_baseline = True
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.group_baseline=True compares .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("target_prob", config)
  with pytest.raises(
    SettingError, match="sampler.group=1: objective.name='target_prob' compares .*use at least 2"
  ):
    checks.check(make(config), tiny.decoder())
  config.objective = defaults.objective("rft", config)
  checks.check(make(config), tiny.decoder())
  config.loop, config.offline.data, config.objective = (
    "offline",
    "pairs",
    defaults.objective("dpo", config),
  )
  with pytest.raises(
    SettingError, match="sampler.group=1 with offline.data='pairs': use at least 2"
  ):
    checks.check(make(config), tiny.decoder())


def own(rollouts):
  """An advantage that needs no group."""
  return rollouts.rewards


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("choice.choice_correct", "ValueError: the answer '.*' is not the letter of an option"),
    ("steps.steps_correct", ""),
    (f"{__file__}:leaves", "ValueError: called sys.exit"),
    (f"{__file__}:hangs", r"took longer than 0.1 s \(rewards.deadline\)"),
    (f"{__file__}:talks", "TypeError: returned 'very good', which is no number"),
  ],
)
def test_a_reward_that_cannot_score_the_test_data(config, name, message):
  config.eval.reward, config.rewards.deadline = name, 0.1
  model = build.model(make(config))
  if not message:
    evaluator.Evaluator(make(config), model)
    return
  with pytest.raises(
    SettingError, match=f"eval.reward='{name}': cannot score the test data: {message}.*; use"
  ):
    evaluator.Evaluator(make(config), model)


def test_an_evaluation_whose_reward_returns_nothing_says_so(config):
  config.eval.reward = f"{__file__}:forgets"
  found = evaluator.Evaluator(make(config), build.model(make(config)))
  assert not found.warnings({"accuracy": 0.0})  # nothing was asked yet
  example, completion = found.problems[0], Completion("", [1], 1, [])
  found.reward.score(example, completion)
  ((_, said),) = found.warnings({"accuracy": 0.0})
  assert said.endswith(
    "forgets' returned None, or an empty list, for each of 1 completions, which count as not "
    "solved; "
    "is a `return` missing?"
  )
  found.reward.score(example._replace(answer="some"), completion)
  assert not found.warnings({"accuracy": 0.0})


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
    collect.make_collector(make(config), build.model(make(config)))
  config.rewards.functions = (("mine", f"{__file__}:leaves", 1.0),)
  collect.make_collector(make(config), build.model(make(config)))  # it may work on what is sampled


def test_a_check_reads_no_weights_of_reward_models(config, monkeypatch):
  loads = []
  monkeypatch.setattr(load, "_check_model", lambda *_: lambda: loads.append("judge"))
  config.rewards.outcome_models = (("judge", "folder", 1.0),)
  model = build.model(make(config))
  collect.check_collector(make(config), model)
  assert not loads
  collect.make_collector(make(config), model)
  assert loads == ["judge"]


def leaves(example: Example, completion):
  raise SystemExit(0)


def forgets(example: Example, completion):
  return 0.0 if example.answer == "some" else None


def hangs(example: Example, completion):
  while True:
    pass


def talks(example: Example, completion):
  return "very good"


@pytest.mark.parametrize("setting", ["ref_from", "init_from"])
def test_a_run_without_a_checkpoint_gives_no_weights(config, tmp_path, setting):
  build.describe(build.model(make(config)), str(tmp_path / "model"))
  if setting == "init_from":
    config.init_from, config.tokenizer, config.model.variant = str(tmp_path), "", ""
    with pytest.raises(CheckpointError, match="init_from=.*this run has no complete checkpoint"):
      build.model(make(config))
  else:
    with pytest.raises(CheckpointError, match="ref_from=.*this run has no complete checkpoint"):
      build.check_source(str(tmp_path), build.model(make(config)), "ref_from")
  with pytest.raises(SettingError, match="offline.teacher='gone': no such folder"):
    build.check_source("gone", None, "offline.teacher")


# -- during a run


class Console:
  """Takes the place of a writer, and keeps what it is given."""

  def __init__(self):
    self.said = []

  def warn(self, about: str, text: str) -> None:
    self.said.append(text)


def test_a_run_that_learns_nothing_is_warned_of_once():
  writer, look = Console(), watch.Watch(96)
  for flat in (*[1.0] * (watch.STEPS - 1), 0.5, *[1.0] * (2 * watch.STEPS)):
    look({"zero_variance": flat, "reward/mean": 0.0, "truncated": 0.2}, writer)
  (said,) = writer.said
  assert f"in {watch.STEPS} steps no group had an advantage" in said and "reward/mean is 0)" in said


def test_a_run_whose_samples_are_cut_off_is_warned_of():
  writer, look = Console(), watch.Watch(96)
  for _ in range(watch.STEPS):
    look({"truncated": 0.97}, writer)
  assert "sampler.max_length=96: raise it" in writer.said[0] and len(writer.said) == 1


def test_a_run_that_unlearns_to_end_is_warned_of_soon():
  writer, look = Console(), watch.Watch(96)
  for truncated in (0.02, 0.3, *[0.6] * (watch.SOON - 1), 0.4, *[0.6] * (2 * watch.SOON)):
    look({"truncated": truncated, "reward/mean": 0.6}, writer)
  (said,) = writer.said
  assert (
    "60% of the completions are now cut off at sampler.max_length=96, where it was 2% before"
    in said
  )
  writer, look = Console(), watch.Watch(96)
  for _ in range(2 * watch.SOON):  # it never ended them
    look({"truncated": 0.6}, writer)
  assert not writer.said


def test_a_run_whose_reward_falls_is_warned_of():
  writer, look = Console(), watch.Watch(96)
  for mean in (*[2.0] * watch.STEPS, float("nan"), *[1.2] * watch.STEPS):
    look({"reward/mean": mean}, writer)
  assert not writer.said
  for _ in range(watch.STEPS):
    look({"reward/mean": 0.6}, writer)
  assert set(writer.said) and "reward/mean was 2 in the first 10 steps" in writer.said[0]
  writer, look = Console(), watch.Watch(96)
  for mean in (
    *[-1.0] * watch.STEPS,
    *[-0.4] * watch.STEPS,
    *[0.0] * watch.STEPS,
  ):  # a punishment that grows less
    look({"reward/mean": mean}, writer)
  assert not writer.said


def test_a_warning_is_given_once(tmp_path: pathlib.Path, capsys):
  log = ConfigDict(
    {"tensorboard": False, "every": 1, "samples": 0, "samples_every": 0, "bucket_seconds": 60.0}
  )
  with Writer(str(tmp_path), log, 3) as writer:
    for about, text in (("a", "one"), ("a", "two"), ("b", "three")):
      writer.warn(about, text)
    writer.step(0, {"reward/mean": 1.0, "reward_faults": 3})
  out = capsys.readouterr().out
  assert "warning: one" in out and "two" not in out and "warning: three" in out
  assert "failed rewards 3" in out
