"""Divides a config with a run before it, makes both runs, stops them and goes on."""

import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest
import small_models  # noqa: F401  adds the variants named test_*
import tiny_runs
from conftest import ROOT
from ml_collections import ConfigDict

from experiments import arithmetic_iterative, gsm8k_process, run, stages
from grpo_jax.errors import CheckpointError, SettingError, TrainingError
from grpo_jax.loops import offline, online, reward_model
from grpo_jax.loops.run import recorded
from grpo_jax.run import signals
from grpo_jax.run.workdir import claim
from grpo_jax.setup import defaults
from grpo_jax.types import Completion, Example


def tiny() -> ConfigDict:
  c = defaults.get_config()
  c.steps = 1
  c.data.arithmetic.size = 64
  c.data.prompts, c.data.max_prompt_length, c.data.on_long = 8, 16, "cut"
  c.sampler.max_length = 6
  c.eval.problems, c.eval.samples = 0, 0
  c.log.measure_every, c.log.samples_every, c.log.writers = 0, 0, ()
  return c


def two_runs() -> ConfigDict:
  """GRPO after two steps of SFT."""
  c, first = tiny(), tiny()
  first.loop, first.steps = "offline", 2
  first.model.variant, first.tokenizer = "test_qwen3", "words"
  first.objective = defaults.objective("sft", first)
  stages.put_first(c, first, "data.path", "data.arithmetic")
  return c.lock()


def test_a_config_without_a_first_run_is_one_run():
  c = tiny()
  ((config, workdir),) = stages.divide(c, "runs/1")
  assert config.to_dict() == c.to_dict() and workdir == "runs/1"


def test_the_second_run_starts_from_the_first():
  c = two_runs()
  c.seed, c.first.steps = 7, 5
  c.data.path, c.data.arithmetic.size = "d", 9
  first, last = stages.divide(c, "runs/1/")
  assert first.workdir == "runs/1/first" and last.workdir == "runs/1/"
  assert first.config.to_dict() == c.first.to_dict()
  assert (first.config.seed, last.config.seed) == (1007, 7)
  assert (first.config.data.path, first.config.data.arithmetic.size) == ("d", 9)
  assert last.config.init_from == "runs/1/first" and "first" not in last.config
  assert c.init_from == "" and "first" in c  # as it was


def test_the_seed_of_the_first_run_can_be_given():
  c = two_runs()
  c.first.seed, c.seed = 5, 7
  assert [stage.config.seed for stage in stages.divide(c, "runs/1")] == [5, 7]


def test_a_list_in_a_setting_is_no_name_of_the_first_run():
  """Takes a table of rewards with lists in it."""
  c = two_runs()
  with c.unlocked():
    c.rewards.functions = (["correct", "math.answer_correct", 1.0],)
  assert stages.divide(c, "runs/1")[-1].config.init_from == "runs/1/first"


def test_one_flag_sets_what_both_start_from(monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  c = two_runs()
  c.init_from = "~/weights"
  first, last = stages.divide(c, "runs/1")
  assert first.config.init_from == "/home/me/weights"
  assert last.config.init_from == "runs/1/first"


def test_other_settings_can_name_the_first_run():
  """As a reward model; the policy then starts from what it says itself."""
  c = two_runs()
  c.init_from = "weights"
  c.rewards.process_models = (("judge", stages.RUN, 1.0),)
  first, last = stages.divide(c, "runs/1")
  assert last.config.rewards.process_models == (("judge", "runs/1/first", 1.0),)
  assert first.config.init_from == last.config.init_from == "weights"
  assert c.rewards.process_models == (("judge", stages.RUN, 1.0),)  # as it was


@pytest.mark.parametrize("module", [arithmetic_iterative, gsm8k_process])
def test_a_missing_reward_model_is_trained_first(module):
  first, last = stages.divide(module.get_config(), "runs/1")
  given = stages.divide(module.get_config("reward_model=runs/1/first"), "runs/1")
  assert [last.config.to_dict()] == [stage.config.to_dict() for stage in given]
  assert first.config.loop in ("reward_model", "process_reward_model")
  assert first.config.init_from == last.config.init_from


def test_three_runs():
  c = two_runs()
  with c.unlocked():
    c.first.first = tiny()
  found = stages.divide(c, "1")
  assert [stage.workdir for stage in found] == ["1/first/first", "1/first", "1"]
  assert [stage.config.init_from for stage in found] == ["", "1/first/first", "1/first"]


def two_starts(c: ConfigDict) -> None:
  with c.unlocked():
    c.init_from, c.first = "a", tiny()
  c.first.init_from = "b"


def text(c: ConfigDict) -> None:
  with c.unlocked(), c.ignore_type():
    c.first = "sft.py"


WRONG = [
  (lambda c: c.update({"steps": 0}), "steps=0: use a whole number of at least 1"),
  (lambda c: c.first.update({"steps": 0}), "first.steps=0: use a whole number of at least 1"),
  (two_starts, "init_from='a': the run starts from what first ends with; use --config.first"),
  (text, "first='sft.py': use the config of a run"),
]


@pytest.mark.parametrize("change, message", WRONG)
def test_what_is_wrong_is_said_before_anything_starts(change, message, tmp_path):
  c = two_runs()
  change(c)
  with pytest.raises(SettingError) as error:
    run.start(c, str(tmp_path))
  assert str(error.value).startswith(message) and not any(tmp_path.iterdir())


def test_a_mistake_in_the_second_run_is_found_before_the_first(tmp_path):
  c = two_runs()
  c.learner.minibatches = 3
  with pytest.raises(SettingError, match="learner.minibatches=3"):  # does not divide 8 prompts
    run.start(c, str(tmp_path))
  assert not any(tmp_path.iterdir())


def no_prompt_fits(c: ConfigDict) -> None:
  c.data.max_prompt_length, c.data.on_long = 2, "skip"


def no_problems(c: ConfigDict) -> None:
  c.eval.problems, c.data.test_path = 4, "typo"


def no_reward_model(c: ConfigDict) -> None:
  c.rewards.outcome_models = (("judge", "typo", 1.0),)


def no_reference(c: ConfigDict) -> None:
  c.ref_from, c.objective.beta = "typo", 0.1


def no_question_for_the_teacher(c: ConfigDict) -> None:
  c.objective = defaults.objective("gkd", c)
  c.reference.prompt = "The answer is {solution}."


def no_problems_after_sft(c: ConfigDict) -> None:
  c.loop, c.objective = "offline", defaults.objective("sft", c)
  no_problems(c)


def adapters_without_an_export(c: ConfigDict) -> None:
  c.lora.rank, c.first.checkpoint.export = 4, False


def a_reward_model_to_start_from(c: ConfigDict) -> None:
  reward_model_run(c.first)


def no_pairs(c: ConfigDict) -> None:
  c.loop, c.objective = "offline", defaults.objective("dpo", c)
  c.offline.data, c.offline.pairs = "pairs", "typo"


def no_teacher(c: ConfigDict) -> None:
  c.loop, c.offline.data, c.offline.teacher = "offline", "samples", "typo"
  c.objective = defaults.objective("rft", c)


def no_judge_of_samples(c: ConfigDict) -> None:
  c.loop, c.offline.data = "offline", "samples"
  c.objective = defaults.objective("rft", c)
  no_reward_model(c)


def iterative_run(c: ConfigDict) -> None:
  c.loop, c.iterative.labels = "iterative", "right"
  c.rewards.functions = (("right", "math.answer_correct", 1.0),)


def no_start_of_the_reward_model(c: ConfigDict) -> None:
  iterative_run(c)
  c.iterative.reward_model = "typo"


def a_reward_model_of_other_tokens(c: ConfigDict) -> None:
  iterative_run(c)
  c.iterative.reward_model = str(ROOT / "experiments" / "arithmetic_warm_start")


def reward_model_run(c: ConfigDict) -> None:
  c.loop, c.offline.data = "reward_model", "pairs"
  c.objective = defaults.objective("reward_model", c)


def no_pairs_of_a_reward_model(c: ConfigDict) -> None:
  reward_model_run(c)
  c.offline.pairs = "typo"


def no_policy_of_a_reward_model(c: ConfigDict) -> None:
  reward_model_run(c)
  c.offline.teacher = "typo"


def fresh(c: ConfigDict) -> None:
  """Does not start from the first run, which another setting names."""
  c.model.variant, c.tokenizer = "test_qwen3", "words"


def a_teacher_that_is_a_reward_model(c: ConfigDict) -> None:
  reward_model_run(c)
  reward_model_run(c.first)
  fresh(c)
  c.offline.teacher = stages.RUN


def samples_of_a_reward_model(c: ConfigDict) -> None:
  reward_model_run(c)
  reward_model_run(c.first)


def a_reference_that_is_a_reward_model(c: ConfigDict) -> None:
  reward_model_run(c.first)
  fresh(c)
  c.ref_from, c.objective.beta = stages.RUN, 0.1


def a_judge_that_is_a_policy(c: ConfigDict) -> None:
  fresh(c)
  c.rewards.process_models = (("judge", stages.RUN, 1.0),)


def a_learning_judge_without_an_export(c: ConfigDict) -> None:
  iterative_run(c)
  reward_model_run(c.first)
  c.init_from = str(ROOT / "experiments" / "arithmetic_warm_start")
  c.first.model.variant, c.first.tokenizer = "", ""
  c.iterative.reward_model = stages.RUN
  c.lora.rank, c.first.checkpoint.export = 4, False


def pairs_that_the_mesh_does_not_divide(c: ConfigDict) -> None:
  iterative_run(c)
  c.mesh.fsdp, c.iterative.pairs = 8, 20


def a_reward_that_refuses_the_data(c: ConfigDict) -> None:
  c.rewards.functions = (("refuses", f"{__file__}:refuses", 1.0),)


def refuses(example: Example, completion: Completion) -> float:
  raise SettingError("this data is not for me")


def no_steps(c: ConfigDict) -> None:
  c.loop, c.offline.data, c.offline.steps = "process_reward_model", "steps", "typo"
  c.objective = defaults.objective("process_reward_model", c)


def use_file(c: ConfigDict, folder: pathlib.Path) -> None:
  """Learns from a file in `folder`, whose words no other tokenizer has."""
  path = folder / "train.jsonl"
  path.write_text('{"question": "one and two and three", "answer": "6"}\n' * 8)
  for config in (c, *([c.first] if "first" in c else ())):
    config.data.name, config.data.path = "jsonl", str(path)


@pytest.mark.parametrize(
  "change, message",
  [
    (no_prompt_fits, "max_prompt_length=2"),
    (no_problems, "data.test_path = 'typo'"),
    (no_reward_model, "rewards.outcome_models has 'judge', 'typo': no such folder"),
    (no_reference, "ref_from='typo': no such folder"),
    (no_question_for_the_teacher, "reference.prompt='The answer is "),
    (no_problems_after_sft, "data.test_path = 'typo'"),
    (adapters_without_an_export, "^lora.rank=4 with first.checkpoint.export=False"),
    (a_reward_model_to_start_from, "^first.loop='reward_model': trains a reward model, .*{first}"),
    (no_pairs, "offline.pairs='typo'"),
    (no_teacher, "offline.teacher='typo': no such folder"),
    (no_judge_of_samples, "rewards.outcome_models has 'judge', 'typo': no such folder"),
    (no_start_of_the_reward_model, "iterative.reward_model='typo': no such folder"),
    (a_reward_model_of_other_tokens, "iterative.reward_model='.*': its tokenizer reads a text"),
    (no_pairs_of_a_reward_model, "offline.pairs='typo'"),
    (no_policy_of_a_reward_model, "offline.teacher='typo': no such folder"),
    (no_steps, "offline.steps = 'typo'"),
    (
      a_teacher_that_is_a_reward_model,
      "^offline.teacher='.*first': that run trains a reward model",
    ),
    (samples_of_a_reward_model, "^init_from='.*first': .* give a policy in offline.teacher"),
    (a_reference_that_is_a_reward_model, "^ref_from='.*first': that run trains a reward model"),
    (a_judge_that_is_a_policy, "^rewards.process_models has 'judge', '.*': that run trains a"),
    (a_learning_judge_without_an_export, "^lora.rank=4 with first.checkpoint.export=False"),
    (pairs_that_the_mesh_does_not_divide, "^iterative.pairs=20: use a multiple of 8"),
    (a_reward_that_refuses_the_data, "this data is not for me"),
  ],
)
def test_so_are_data_and_models_that_it_cannot_use(change, message, tmp_path):
  c = two_runs()
  use_file(c, tmp_path)
  change(c)
  with pytest.raises(SettingError, match=message):
    run.start(c, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [no_start_of_the_reward_model, a_reward_model_of_other_tokens])
def test_a_wrong_reward_model_has_the_line_of_its_own_start(change, tmp_path):
  c, alone = two_runs(), tiny()
  alone.model.variant, alone.tokenizer = "test_qwen3", "words"
  said = []
  for config in (c, alone):
    use_file(config, tmp_path)
    change(config)
    with pytest.raises(SettingError) as error:
      run.start(config, str(tmp_path / "run"))
    said.append(str(error.value))
  assert said[0] == said[1] and not (tmp_path / "run").exists()


def test_the_tokenizer_is_that_of_the_first_run_s_data(tmp_path, monkeypatch):
  """Accepts a reward model of these tokens although the second run's data has other words."""
  monkeypatch.setattr(offline, "train", lambda *args: None)
  c = two_runs()
  use_file(c, tmp_path)
  with c.unlocked():
    c.first.data = tiny().data
    c.first.data.arithmetic.size = 1000  # fewer have not all of its words
  a_reward_model_of_other_tokens(c)
  run.start(c, str(tmp_path / "run"))  # the first one, which is not done


def test_what_the_first_run_will_write_is_no_mistake(tmp_path, monkeypatch):
  """Accepts its folder by the whole path, and by the path from where the command is given."""
  monkeypatch.chdir(tmp_path)
  for loop in (offline, reward_model):
    monkeypatch.setattr(loop, "train", lambda *args: None)
  for name in ("run/first", f"{tmp_path}/run/first/"):
    c = two_runs()
    c.ref_from, c.objective.beta = name, 0.1
    run.start(c, "run")  # the first one, which is not done: the second does not start
    c = two_runs()
    reward_model_run(c.first)
    fresh(c)
    rows = ("a", stages.RUN, 1.0), ("b", name, 1.0), ("c", f"{name}/export", 1.0)
    c.rewards.outcome_models = rows
    run.start(c, "run")
    c = two_runs()
    c.lora.rank = 4
    run.start(c, "run")
    c = two_runs()
    iterative_run(c)
    c.iterative.reward_model = f"{name}/reward_model"
    run.start(c, "run")
    c = two_runs()
    reward_model_run(c)
    c.offline.teacher = name
    run.start(c, "run")


def test_a_run_after_a_reward_model_may_start_from_the_run_before_that(tmp_path, monkeypatch):
  monkeypatch.setattr(offline, "train", lambda *args: None)
  c, folder = two_runs(), str(tmp_path / "run")
  judge = two_runs()
  reward_model_run(judge)
  with c.unlocked():
    c.first = judge
  c.init_from, c.rewards.outcome_models = f"{folder}/first/first", (("judge", stages.RUN, 1.0),)
  run.start(c, folder)  # the first one, which is not done
  c.lora.rank = 4
  run.start(c, folder)
  judge.first.checkpoint.export = False
  with pytest.raises(SettingError, match="^lora.rank=4 with first.first.checkpoint.export=False"):
    run.start(c, folder)


def weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
  from safetensors.numpy import load_file

  return load_file(folder / "export" / "model.safetensors")


@pytest.mark.slow
def test_both_runs_are_made_by_one_command(tmp_path, monkeypatch):
  c = two_runs()
  c.learner.lr = c.first.learner.lr = 0.0
  c.first.learner.lr = 1e-2
  run.start(c, str(tmp_path))
  one, two = (json.loads((d / "result.json").read_text()) for d in (tmp_path / "first", tmp_path))
  assert (one["steps"], two["steps"]) == (2, 1)
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["init_from"] == f"{tmp_path}/first" and "first" not in config
  jax.tree.map(np.testing.assert_array_equal, weights(tmp_path / "first"), weights(tmp_path))

  calls = []
  monkeypatch.setattr(offline, "train", lambda *args: calls.append("offline"))
  monkeypatch.setattr(online, "train", lambda *args: calls.append("online"))
  run.start(c, str(tmp_path))
  assert calls == ["online"]  # the first is done
  c.first.learner.lr = 1e-3
  with pytest.raises(SettingError, match="/first: belongs to another config"):
    run.start(c, str(tmp_path))


def test_the_second_run_waits_for_a_first_one_that_was_stopped(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(offline, "train", lambda experiment, folder: calls.append(folder))
  monkeypatch.setattr(online, "train", lambda experiment, folder: calls.append(folder))
  monkeypatch.setattr(run, "draw", lambda folder: None)
  run.start(two_runs(), str(tmp_path))
  assert calls == [f"{tmp_path}/first"]


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Returns the folders whose runs were made, by loops that only write how many steps they had."""
  calls = []

  def train(experiment, folder):
    calls.append(folder)
    claim(folder, recorded(experiment))
    (pathlib.Path(folder) / "result.json").write_text(json.dumps({"steps": experiment.steps}))

  for loop in (offline, online):
    monkeypatch.setattr(loop, "train", train)
  monkeypatch.setattr(run, "draw", lambda folder: None)
  return calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_the_end_of_the_first_run_ends_the_command(
  trained, tmp_path, monkeypatch, capsys, number
):
  train = offline.train

  def interrupted(experiment, folder):
    with signals.stop_signals():
      os.kill(os.getpid(), number)
      train(experiment, folder)  # it goes on to its end

  monkeypatch.setattr(offline, "train", interrupted)
  run.start(two_runs(), str(tmp_path))
  assert trained == [f"{tmp_path}/first"]
  assert f"{tmp_path}/first is done; to go on, run the same command" in capsys.readouterr().out


def test_a_folder_of_another_config_is_refused_before_the_first_run(trained, tmp_path):
  c = two_runs()
  other = tiny_runs.as_json(tiny())
  other["learner"]["lr"] = 0.5
  claim(str(tmp_path), other)
  with pytest.raises(SettingError, match="another config .*learner.lr was 0.5"):
    run.start(c, str(tmp_path))
  assert not trained


def test_so_is_a_folder_with_what_a_loop_like_iterative_would_replace(trained, tmp_path):
  loop, c = tmp_path / "my_loop.py", two_runs()
  loop.write_text("LIKE = 'iterative'\ndef train(experiment, workdir): pass\n")
  c.loop = str(loop)
  c.rewards.functions, c.iterative.labels = (("right", "math.answer_correct", 1.0),), "right"
  (tmp_path / "run" / "reward_model").mkdir(parents=True)
  (tmp_path / "run" / "reward_model" / "config.json").write_text("mine\n")
  with pytest.raises(CheckpointError, match="holds reward_model/ and no config.json"):
    run.start(c, str(tmp_path / "run"))
  assert not trained


@pytest.mark.parametrize("kind", [SettingError, TrainingError])
def test_an_error_of_the_first_run_says_so(trained, tmp_path, monkeypatch, kind):
  def refuse(*_):
    raise kind("steps=2: use at least 4")

  monkeypatch.setattr(offline, "train", refuse)
  with pytest.raises(kind, match="^first: steps=2: use at least 4"):
    run.start(two_runs(), str(tmp_path))
  c = two_runs()
  c.first.loop = "nope"
  with pytest.raises(SettingError, match="^first: loop='nope'"):
    run.start(c, str(tmp_path))


def test_a_first_run_is_not_made_longer_once_the_second_has_started(trained, tmp_path):
  c = two_runs()
  c.first.learner.schedule = "constant"  # under which more steps are the same run
  run.start(c, str(tmp_path))
  c.first.steps = 3
  with pytest.raises(SettingError, match="first.steps=3: .* after 2 steps; use first.steps=2"):
    run.start(c, str(tmp_path))
  assert len(trained) == 2
  for name in ("config.json", "result.json"):
    (tmp_path / name).unlink()
  run.start(c, str(tmp_path))
  assert len(trained) == 4


def test_so_is_none_of_three(trained, tmp_path):
  c, last = two_runs(), two_runs()
  c.first.learner.schedule = "constant"
  with last.unlocked():
    last.first = c
  run.start(last, str(tmp_path))
  c.first.steps = 3
  with pytest.raises(SettingError, match="^first: first.steps=3: .* use first.steps=2"):
    run.start(last, str(tmp_path))


def test_a_first_run_goes_on_after_a_new_default_of_a_setting_it_does_not_read(trained, tmp_path):
  run.start(two_runs(), str(tmp_path))
  path = tmp_path / "first" / "config.json"
  older = json.loads(path.read_text())
  older["learner"]["entropy_step"] = 0.005
  path.write_text(json.dumps(older))
  run.start(two_runs(), str(tmp_path))
  assert trained == [f"{tmp_path}/first", str(tmp_path), str(tmp_path)]
