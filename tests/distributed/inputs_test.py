"""What a run depends on: how it is named, told apart, compared between hosts and recorded in the
run's folder.
"""

import json
import os
import re
import sys

import pytest
import tiny_runs

from grpo_jax.distributed import hosts, inputs
from grpo_jax.errors import TrainingError
from grpo_jax.io import inputs_file
from grpo_jax.types import Example


@pytest.fixture
def several(monkeypatch):
  """`several(*values)`: what `check_hosts` gathers of so many processes."""

  def gathered(*values):
    monkeypatch.setattr(inputs.jax, "process_count", lambda: len(values))
    monkeypatch.setattr(hosts, "gather", lambda value: list(values))

  return gathered


def test_hosts_that_agree_go_on(several):
  several({"a": "1"}, {"a": "1"}, {"a": "1"})
  inputs.check_hosts({"a": "1"})


@pytest.mark.parametrize(
  "first, other, said",
  [
    (
      {"learner.lr": "1e-06"},
      {"learner.lr": "0.01"},
      "learner.lr: host 0 has 1e-06, host 1 has 0.01; all hosts need",
    ),
    ({"seed": "0"}, {}, "seed: host 0 has 0, host 1 has nothing; all hosts need"),
    ({}, {"seed": "0"}, "seed: host 0 has nothing, host 1 has 0; all hosts need"),
    (
      dict.fromkeys("abcde", "1"),
      dict.fromkeys("abcde", "2"),
      "a: host 0 has 1, host 1 has 2; b: .*; c: .*; and 2 more;",
    ),
    (
      {"code of a.py": "1"},
      {"code of a.py": "2"},
      "code of a.py: host 0 has 1, host 1 has 2; all hosts need",
    ),
  ],
)
def test_hosts_that_differ_are_told_what_differs_where_and_both_values(several, first, other, said):
  several(first, first, other)  # the third host
  with pytest.raises(TrainingError, match=said.replace("host 1", "host 2").replace("(", r"\(")):
    inputs.check_hosts(first)


def test_a_module_that_one_host_alone_has_loaded_is_no_difference(several):
  several({"code of a": "1"}, {"code of a": "1", "code of helper": "2"})
  inputs.check_hosts({})


def test_long_values_are_shown_from_where_they_differ():
  a, b = "x" * 500 + "1" + "y" * 500, "x" * 500 + "2" + "y" * 500
  shown = [inputs._excerpt(a, b), inputs._excerpt(b, a)]
  assert all(
    len(text) < 130 and text.startswith("...x") and text.endswith("y...") for text in shown
  )
  assert "x1y" in shown[0] and "x2y" in shown[1]
  assert (
    inputs._excerpt("x" * 500, "x" * 499).endswith("xx") and inputs._excerpt(None, "") == "nothing"
  )


def test_every_setting_has_its_dotted_name():
  c = tiny_runs.config({"learner.lr": 1e-2})
  found = inputs.describe_settings(c)
  assert (
    found["learner.lr"] == "0.01"
    and found["data.jsonl.question"] == "'question'"
    and found["seed"] == "0"
  )
  assert inputs_file.differences(found, inputs.describe_settings(tiny_runs.config({}))) == []
  assert inputs_file.differences(
    found, inputs.describe_settings(tiny_runs.config({"learner.lr": 1e-3}))
  ) == ["learner.lr"]


def test_versions_name_jax_and_the_project_s_own_code():
  found = inputs.describe_versions()
  assert found["version of jax"] == __import__("jax").__version__
  assert (
    re.fullmatch("[0-9a-f]{16}", found["code of grpo_jax"]) and found["jax_enable_x64"] == "False"
  )
  assert found == inputs.describe_versions()


def test_code_is_that_of_settings_and_of_a_user_s_modules_without_installed_ones(
  tmp_path, monkeypatch
):
  (tmp_path / "helper_of_mine.py").write_text("x = 1\n")
  monkeypatch.syspath_prepend(tmp_path)
  import helper_of_mine  # noqa: F401

  found = inputs.describe_code({"my_reward.py": "0123"})
  assert found["code of my_reward.py"] == "0123"
  assert found["code of helper_of_mine"] == inputs.describe_file(tmp_path / "helper_of_mine.py")
  tops = {name.removeprefix("code of ").split(".")[0] for name in found}
  assert not tops & {"json", "os", "jax", "numpy", "pytest", "grpo_jax", "experiments", "__main__"}
  del sys.modules["helper_of_mine"]


def test_a_file_is_known_by_its_size_and_every_byte(tmp_path, monkeypatch):
  file = tmp_path / "data.jsonl"
  file.write_bytes(b"a" * 1000)
  before = inputs.describe_file(file)
  file.write_bytes(b"a" * 500 + b"b" + b"a" * 499)
  assert before.startswith("1000 bytes, ") and inputs.describe_file(file) != before
  assert inputs.describe_file(tmp_path / "none") == "absent"
  os.mkfifo(tmp_path / "pipe")
  assert inputs.describe_file(tmp_path / "pipe") == inputs.describe_file("/dev/zero") == "absent"
  monkeypatch.setattr(inputs, "WHOLE_BYTES", 500)  # in pieces
  monkeypatch.setattr(inputs, "PIECE_BYTES", 2)
  pieces = inputs.describe_file(file)
  file.write_bytes(b"a" * 998 + b"bb")
  assert inputs.describe_file(file) != pieces and inputs.describe_file(file).startswith(
    "1000 bytes, "
  )


def test_a_folder_is_known_by_each_of_its_files(tmp_path, monkeypatch):
  for name in ("b.json", "a.json", ".hidden"):
    (tmp_path / name).write_text(name)
  (tmp_path / "folder").mkdir()
  found = inputs.describe_path("init_from", str(tmp_path))
  assert list(found) == ["init_from/a.json", "init_from/b.json"]
  assert inputs.describe_path("data.path", str(tmp_path / "a.json")) == {
    "data.path": found["init_from/a.json"]
  }
  assert inputs.describe_path("data.path", "") == {}
  assert inputs.describe_path("data.path", str(tmp_path / "none")) == {"data.path": "absent"}
  monkeypatch.setattr(inputs, "MOST_FILES", 1)
  assert inputs.describe_path("data.path", str(tmp_path))["data.path"].startswith(
    "2 files, 12 bytes, "
  )


def test_examples_are_known_by_their_number_the_first_and_the_last():
  found = inputs.describe_examples("training data", ["a", "b", "c"])
  assert list(found) == ["training data"] and found["training data"].startswith(
    "3 examples, the first "
  )
  others = (["a", "c", "b"], ["b", "a", "c"], ["a", "b", "b", "c"], ["a"], [])
  assert len({str(inputs.describe_examples("", each)) for each in (*others, ["a", "b", "c"])}) == 6
  # an object lies in another place of each process
  scorers = [Example("1 + 1?", "", "2", {"score": object()}) for _ in range(2)]
  assert repr(scorers[0]) != repr(scorers[1])
  assert len({str(inputs.describe_examples("", [each])) for each in scorers}) == 1
  # the prompts of steps differ
  assert inputs.describe_examples("", ["a", "x", "c"]) == inputs.describe_examples(
    "", ["a", "b", "c"]
  )


def test_what_has_changed_since_a_run_began_is_told_once_and_what_was_before_is_kept(tmp_path):
  old, new = {"code of a.py": "1", "data.path": "2"}, {"code of a.py": "3", "data.path": "2"}
  assert inputs.record(str(tmp_path), old, None) == []
  assert json.loads((tmp_path / "inputs.json").read_text()) == old
  assert inputs.record(str(tmp_path), old, 12) == []
  assert os.listdir(tmp_path) == ["inputs.json"]
  assert inputs.record(str(tmp_path), new, 12) == [
    "code of a.py has changed since step 12 of this run: was 1, is 3"
  ]
  assert json.loads((tmp_path / "inputs.json").read_text()) == new
  assert json.loads((tmp_path / "inputs-until-12.json").read_text()) == old
  assert inputs.record(str(tmp_path), new, 20) == []
  # once more at that step: what the steps before it had stays
  assert inputs.record(str(tmp_path), {}, 12)
  assert json.loads((tmp_path / "inputs-until-12.json").read_text()) == old


def test_a_run_that_has_done_no_step_or_is_from_before_is_recorded_without_a_word(tmp_path):
  assert inputs.record(str(tmp_path), {"a": "1"}, 30) == []  # a folder without inputs.json
  (tmp_path / "new").mkdir()
  inputs.record(str(tmp_path / "new"), {"a": "1"}, None)
  assert inputs.record(str(tmp_path / "new"), {"a": "2"}, None) == []
  assert os.listdir(tmp_path / "new") == ["inputs.json"]


def test_what_has_changed_since_the_first_weights_or_samples_were_saved_is_told(tmp_path):
  inputs.record(str(tmp_path), {"a": "1"}, None)
  (line,) = inputs.record(str(tmp_path), {"a": "2"}, 0)  # from a checkpoint of no step
  assert line == "a has changed since step 0 of this run: was 1, is 2"
  (tmp_path / "samples.npz").write_bytes(b"")
  assert inputs.record(str(tmp_path), {"a": "3"}, None)
  assert json.loads((tmp_path / "inputs-until-0.json").read_text()) == {"a": "1"}


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, '{"a": 1}'])
def test_a_damaged_record_is_told_and_kept(tmp_path, content):
  (tmp_path / "inputs.json").write_text(content)
  lines = inputs.record(str(tmp_path), {"a": "1"}, 3)
  assert len(lines) == 1 and ("cannot be read" in lines[0] or "a has changed" in lines[0])
  assert (tmp_path / "inputs-until-3.json").read_text() == content
  assert json.loads((tmp_path / "inputs.json").read_text()) == {"a": "1"}
