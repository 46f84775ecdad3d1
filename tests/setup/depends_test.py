"""What a run depends on beside its settings: every file, folder and run that settings name."""

import pytest
import tiny_runs

from grpo_jax.distributed import inputs
from grpo_jax.io import inputs_file
from grpo_jax.setup import depends, modules
from grpo_jax.setup.experiment import make


@pytest.fixture
def folder(tmp_path):
  for name in ("data", "weights", "judge"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(name)
  return tmp_path


@pytest.mark.parametrize(
  "changes, name",
  [
    ({"data.path": "{}/data"}, "data.path/config.json"),
    (
      {"data.mixture": (("jsonl", "{}/data", 1.0), ("jsonl", "", 1.0))},
      "data.mixture[0]/config.json",
    ),
    ({"data.test_path": "{}/data/config.json"}, "data.test_path"),
    ({"offline.pairs": "{}/data/config.json"}, "offline.pairs"),
    ({"offline.steps": "{}/data/config.json"}, "offline.steps"),
    ({"init_from": "{}/weights"}, "init_from/config.json"),
    ({"ref_from": "{}/weights"}, "ref_from/config.json"),
    ({"tokenizer": "{}/weights"}, "tokenizer/config.json"),
    ({"offline.teacher": "{}/weights"}, "offline.teacher/config.json"),
    (
      {"loop": "iterative", "iterative.reward_model": "{}/judge"},
      "iterative.reward_model/config.json",
    ),
    ({"rewards.outcome_models": (("good", "{}/judge", 1.0),)}, "rewards.good/config.json"),
    ({"rewards.process_models": (("step", "{}/judge", 1.0),)}, "rewards.step/config.json"),
  ],
)
def test_what_each_setting_names_is_known_by_its_content(folder, changes, name):
  def put(value):
    if isinstance(value, tuple):
      return tuple(map(put, value))
    return value.format(folder) if isinstance(value, str) else value

  config = tiny_runs.config({key: put(value) for key, value in changes.items()})
  before = depends.of_folders(make(config))
  assert list(before) == [name]
  for file in folder.glob("*/config.json"):
    file.write_text("other")
  assert inputs_file.differences(before, depends.of_folders(make(config))) == [name]


def test_a_run_is_known_by_its_model_and_its_last_checkpoint(tmp_path):
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / "decoder.json").write_text("{}")
  (tmp_path / "checkpoints" / "40").mkdir(parents=True)
  config = tiny_runs.config({"init_from": str(tmp_path)})
  found = depends.of_folders(make(config))
  assert (
    list(found) == ["init_from/decoder.json", "init_from checkpoint"]
    and found["init_from checkpoint"] == "40"
  )
  (tmp_path / "checkpoints" / "60").mkdir()
  assert inputs_file.differences(found, depends.of_folders(make(config))) == [
    "init_from checkpoint"
  ]


def test_nothing_named_is_nothing_to_compare():
  assert depends.of_folders(make(tiny_runs.config({}))) == {}


def test_a_user_s_file_is_known_as_it_was_when_it_was_loaded(tmp_path, monkeypatch):
  monkeypatch.setattr(modules, "loaded", {})
  file = tmp_path / "reward_of_a_user.py"
  file.write_text("def score(example, completion):\n  return 1.0\n")
  was = inputs.describe_file(file)
  modules.function(f"{file}:score", "grpo_jax.rewards", "rewards.functions")
  file.write_text("def score(example, completion):\n  return 2.0\n")
  # the module that is loaded already
  modules.function(f"{file}:score", "grpo_jax.rewards", "rewards.functions")
  modules.function("math.answer_correct", "grpo_jax.rewards", "rewards.functions")
  assert modules.loaded == {str(file): was}


def test_an_installed_module_that_a_setting_names_is_known(monkeypatch):
  monkeypatch.setattr(modules, "loaded", {})
  import ml_collections.config_dict as installed

  modules.module("grpo_jax.data", "ml_collections.config_dict", "data.name")
  assert modules.loaded == {"ml_collections.config_dict": inputs.describe_file(installed.__file__)}
