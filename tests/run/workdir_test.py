"""Which config a folder belongs to."""

import json
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import tiny_runs
from checkpoint_test import abstract, make_state
from conftest import ROOT, environment

from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.run import checkpoint, workdir
from grpo_jax.run.workdir import check_owner, check_seen, check_space, claim, locked
from grpo_jax.setup import defaults, unread
from grpo_jax.setup.experiment import make


@pytest.mark.parametrize(
  "name",
  ["samples.jsonl", "samples.npz", "result.json", "checksums.json", "warnings.txt", "report.html"],
)
def test_a_folder_with_a_file_named_as_one_that_no_run_wrote_is_refused(tmp_path, name):
  (tmp_path / name).write_text("mine\n")
  with pytest.raises(CheckpointError, match=rf"holds {name} and no config.json.*another --workdir"):
    check_owner(str(tmp_path), tiny_runs.as_json(defaults.get_config()))
  assert [p.name for p in tmp_path.iterdir()] == [name]
  assert (tmp_path / name).read_text() == "mine\n"


@pytest.mark.parametrize("name", ["model", "export", "adapter", "checkpoints"])
def test_a_folder_that_a_run_would_replace_is_refused(tmp_path, name):
  (tmp_path / name).mkdir()
  check_owner(str(tmp_path), tiny_runs.as_json(defaults.get_config()))  # it is empty
  (tmp_path / name / "config.json").write_text("mine\n")
  with pytest.raises(CheckpointError, match=rf"holds {name}/ and no config.json.*another --work"):
    check_owner(str(tmp_path), tiny_runs.as_json(defaults.get_config()))


@pytest.mark.parametrize("name", ["reward_model", "replay"])
def test_folders_that_only_an_iterative_run_would_replace(tmp_path, name):
  """Refuses, for instance, a workdir around the run of the reward model that it starts from."""
  (tmp_path / name).mkdir()
  (tmp_path / name / "config.json").write_text("mine\n")
  config = tiny_runs.as_json(defaults.get_config())
  check_owner(str(tmp_path), config)
  with pytest.raises(CheckpointError, match=rf"holds {name}/ and no config.json.*another --work"):
    check_owner(str(tmp_path), config, kind="iterative")


def test_a_workdir_belongs_to_its_config(tmp_path):
  workdir = str(tmp_path / "new" / "run")
  config = defaults.get_config()
  claim(workdir, tiny_runs.as_json(config))
  check_owner(workdir, tiny_runs.as_json(config))
  config.steps, config.log.every, config.mesh.fsdp, config.learner.microbatch = (
    999,
    7,
    1,
    4,
  )  # may change
  check_owner(workdir, tiny_runs.as_json(config))
  claim(workdir, tiny_runs.as_json(config))
  owner = json.loads((tmp_path / "new" / "run" / "config.json").read_text())
  assert (owner["steps"], owner["log"]["every"], owner["learner"]["lr"]) == (999, 7, 1e-6)
  config.learner.lr, config.data.template = 2e-6, "{question} "
  with pytest.raises(SettingError) as error:
    check_owner(workdir, tiny_runs.as_json(config))
  message = str(error.value)
  assert f"workdir={workdir}" in message and "\n" not in message
  assert (
    "learner.lr was 1e-06, is 2e-06" in message and "data.template was '{question}\\n'" in message
  )
  assert "steps" not in message
  assert json.loads((tmp_path / "new" / "run" / "config.json").read_text()) == owner


def test_a_run_of_a_version_without_a_setting_goes_on_with_its_default(tmp_path):
  config = defaults.get_config()
  older = tiny_runs.as_json(config)
  del older["reference"], older["learner"]["entropy_target"]
  claim(str(tmp_path), older)
  check_owner(str(tmp_path), tiny_runs.as_json(config))
  config.learner.entropy_target = 0.2
  with pytest.raises(SettingError, match="learner.entropy_target was absent, is 0.2"):
    check_owner(str(tmp_path), tiny_runs.as_json(config))


def test_neither_is_a_later_setting_of_an_objective_or_a_data_set_at_its_default(tmp_path):
  config = defaults.get_config()
  ours, own = tiny_runs.as_json(config), make(config).own_defaults()
  older = tiny_runs.as_json(config)
  del older["objective"]["eps"], older["data"]["arithmetic"]["words"], older["data"]["jsonl"]
  claim(str(tmp_path), older)
  check_owner(str(tmp_path), ours, own)
  ours["objective"]["eps"] = 0.5
  with pytest.raises(SettingError, match=r"\(objective.eps was absent, is 0.5\)"):
    check_owner(str(tmp_path), ours, own)


def test_a_setting_that_the_run_does_not_read_may_have_another_default_now(tmp_path):
  """Lets the run go on, which could not be given the old value: nothing reads the setting."""
  config = defaults.get_config()
  older = tiny_runs.as_json(config)
  older["learner"]["entropy_step"] = 0.005
  claim(str(tmp_path), older)
  for target in (0.0, 0.2):
    config.learner.entropy_target = older["learner"]["entropy_target"] = target
    claim(str(tmp_path), older)
    ignored = unread.names(make(config))
    if target:
      with pytest.raises(SettingError, match=r"\(learner.entropy_step was 0.005, is 0.0001\)"):
        check_owner(str(tmp_path), tiny_runs.as_json(config), unread=ignored)
    else:
      check_owner(str(tmp_path), tiny_runs.as_json(config), unread=ignored)


def test_a_run_that_goes_on_keeps_the_reward_that_labels_its_steps(tmp_path):
  c = defaults.get_config()
  c.loop, c.offline.continuations = "process_reward_model", 4
  claim(str(tmp_path), tiny_runs.as_json(c))
  c.eval.reward = "format.worked"
  with pytest.raises(SettingError, match=r"another config \(eval.reward was '"):
    check_owner(str(tmp_path), tiny_runs.as_json(c))


IN_USE = """
import sys
from grpo_jax.errors import SettingError
from grpo_jax.run.workdir import locked
try:
  with locked(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
except SettingError as error:
  print(error)
"""


def test_a_folder_has_one_run_at_a_time(tmp_path):
  workdir = str(tmp_path / "run")
  pipes = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "text": True,
    "cwd": ROOT,
    "env": environment(1),
  }
  holder = subprocess.Popen([sys.executable, "-c", IN_USE, workdir], **pipes)
  assert holder.stdout.readline() == "in\n"
  where = f"process {holder.pid} on {socket.gethostname()}"
  with (
    pytest.raises(SettingError, match=f"is in use by {where}; wait until .*another --workdir"),
    locked(workdir),
  ):
    pass
  holder.kill()  # no word, nothing tidied up
  holder.wait()
  with locked(workdir):
    assert (
      tmp_path / "run" / "lock"
    ).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
    second = subprocess.run(
      [sys.executable, "-c", IN_USE, workdir], **pipes | {"stdin": subprocess.DEVNULL}
    )
    assert f"is in use by process {os.getpid()} on" in second.stdout
  with locked(workdir):
    pass


def test_a_folder_that_is_another_one_on_some_host_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(workdir, "SEEN_SECONDS", 0.3)
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(workdir.hosts, "text_of_process_0", lambda text: "seen-1")
  looked = []
  monkeypatch.setattr(workdir.hosts, "together", lambda make: looked.append(make()))
  check_seen(str(tmp_path))  # as process 0
  assert looked == [None, None] and not list(tmp_path.iterdir())
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  with pytest.raises(
    SettingError, match="^workdir=.*: host 1 has another folder there than host 0"
  ):
    check_seen(str(tmp_path))
  (tmp_path / "seen-1").touch()
  check_seen(str(tmp_path))
  assert (tmp_path / "seen-1").exists()  # process 0 removes it
  monkeypatch.setattr(jax, "process_count", lambda: 1)
  check_seen(str(tmp_path / "not made"))


def test_steps_may_not_change_where_the_learning_rate_depends_on_them(tmp_path):
  config = defaults.get_config()
  config.learner.schedule = "linear"
  claim(str(tmp_path), tiny_runs.as_json(config))
  config.steps += 1
  with pytest.raises(
    SettingError,
    match="steps was 200, is 201; the learning rate of every step depends on steps; with ",
  ):
    check_owner(str(tmp_path), tiny_runs.as_json(config))


def test_a_setting_that_came_or_went_is_a_difference(tmp_path):
  config = defaults.get_config()
  claim(str(tmp_path), tiny_runs.as_json(config))
  with config.unlocked():
    config.learner.extra = 1
    del config.objective.eps
  with pytest.raises(
    SettingError, match="learner.extra was absent, is 1; objective.eps was 0.0001, is absent"
  ):
    check_owner(str(tmp_path), tiny_runs.as_json(config))


def test_a_workdir_that_cannot_be_written(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  with pytest.raises(SettingError, match="cannot be written .Not a directory"):
    claim(str(tmp_path / "file" / "run"), tiny_runs.as_json(defaults.get_config()))
  with (
    pytest.raises(SettingError, match="cannot be written .Not a directory"),
    locked(str(tmp_path / "file" / "run")),
  ):
    pass
  with pytest.raises(SettingError, match="cannot be written .Not a directory"):
    checkpoint.Checkpoints(str(tmp_path / "file" / "run"), keep=1)
  with pytest.raises(SettingError, match="checkpoint.keep=0"):
    checkpoint.Checkpoints(str(tmp_path), keep=0)
  claim(str(tmp_path), tiny_runs.as_json(defaults.get_config()))
  before = (tmp_path / "config.json").read_bytes()

  def full(_):
    raise OSError(28, os.strerror(28))

  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(SettingError, match="No space left on device"):
    claim(str(tmp_path), tiny_runs.as_json(defaults.get_config()))
  assert (tmp_path / "config.json").read_bytes() == before
  assert not (tmp_path / "config.json.tmp").exists()


def test_a_disk_without_room_for_a_checkpoint(tmp_path):
  check_space(str(tmp_path), abstract(make_state()))
  huge = {"w": jax.ShapeDtypeStruct((10**9, 10**9), jnp.float32)}
  with pytest.raises(SettingError, match="MB are free .* takes 4000000000000.0 MB"):
    check_space(str(tmp_path), huge)
