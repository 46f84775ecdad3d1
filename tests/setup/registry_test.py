import json
import re

import numpy as np
import objective_cases as cases
import pytest
from ml_collections import ConfigDict

from grpo_jax.data import arithmetic
from grpo_jax.data.arithmetic import Arithmetic
from grpo_jax.errors import SettingError
from grpo_jax.objectives import grpo, rpg
from grpo_jax.ops import advantages
from grpo_jax.setup import registry


def _data(**changes):
  return ConfigDict(
    {
      "name": "arithmetic",
      "path": "",
      "train": "train",
      "test": "test",
      "test_name": "",
      "test_path": "",
      "mixture": (),
      "arithmetic": arithmetic.settings().to_dict() | {"size": 20, "max_number": 50},
      "jsonl": {"question": "question", "answer": "answer", "solution": "", "choices": ""},
    }
    | changes
  )


def _jsonl(path, question):
  path.write_text(json.dumps({"question": question, "answer": "1"}))
  return str(path)


def _rewards(*functions):
  """Returns the section `rewards`; modules_test.py and scorers_test.py use it, too."""
  return ConfigDict({"functions": functions, "outcome_models": (), "process_models": ()})


def test_sources():
  (data_set,) = registry.train_data(_data())
  source = data_set.open()
  assert len(source) == 20 and source[3] == Arithmetic("train", max_number=50)[3]
  assert data_set.weight == 1.0
  assert registry.test_data(_data()).open()[3] == Arithmetic("test", max_number=50)[3]
  with pytest.raises(
    SettingError, match="data.name='arithmetics'.*grpo_jax.data has arithmetic.*, jsonl"
  ):
    registry.train_data(_data(name="arithmetics"))
  with pytest.raises(SettingError, match=r"has no function settings\(\)"):
    registry.train_data(_data(name="loader"))
  with pytest.raises(SettingError, match="data.path = 'x'"):
    registry.train_data(_data(path="x"))[0].open()


OWN_DATA = """
from ml_collections import ConfigDict
from grpo_jax.types import Example

def settings():
  return ConfigDict({"largest": 3})

def source(split, path, cfg):
  return [Example(f"{n} + 1?", f"#### {n + 1}", str(n + 1), {}) for n in range(cfg.largest)]
"""


def test_a_data_set_of_ones_own(tmp_path):
  """Its settings are a section of the config under its name, or its own defaults."""
  (tmp_path / "sums.py").write_text(OWN_DATA)
  cfg = _data(name=str(tmp_path / "sums.py"))
  (data_set,) = registry.train_data(cfg)
  assert [example.answer for example in data_set.open()] == ["1", "2", "3"]
  with cfg.unlocked():
    cfg.sums = ConfigDict({"largest": 1})
  assert len(registry.test_data(cfg).open()) == 1
  (tmp_path / "half.py").write_text("def settings():\n  return {}\n")
  with pytest.raises(SettingError, match=r"half.py': has no function source\(split, path, cfg\)"):
    registry.train_data(_data(name=str(tmp_path / "half.py")))


def test_mixture_and_its_test_set(tmp_path):
  file = _jsonl(tmp_path / "a.jsonl", "a")
  cfg = _data(mixture=(("arithmetic", "", 3.0), ("jsonl", file, 1)))
  sets = registry.train_data(cfg)
  assert [(len(each.open()), each.weight) for each in sets] == [(20, 3.0), (1, 1.0)]
  assert len(registry.test_data(cfg).open()) == 20
  with pytest.raises(SettingError, match="data.mixture has"):
    registry.train_data(_data(mixture=(("arithmetic", 3.0),)))


def test_never_evaluates_on_what_nobody_named(tmp_path):
  """Refuses the default of `data.name`, which a mixture need not hold."""
  mixture = (("jsonl", _jsonl(tmp_path / "a.jsonl", "a"), 1.0),)
  with pytest.raises(SettingError, match="data.test_name='': .* data.name='arithmetic', which the"):
    _check_test(_data(mixture=mixture))
  _check_test(_data(mixture=mixture, test_name="arithmetic"))
  _check_test(_data(mixture=(*mixture, ("arithmetic", "", 1.0))))


def test_never_evaluates_on_the_file_it_trains_on(tmp_path, monkeypatch):
  file, other = _jsonl(tmp_path / "a.jsonl", "a"), _jsonl(tmp_path / "b.jsonl", "b")
  with pytest.raises(SettingError, match="is the file that is trained on"):
    _check_test(_data(name="jsonl", path=file))
  with pytest.raises(SettingError, match="is the file that is trained on"):
    _check_test(_data(mixture=(("jsonl", file, 1.0),), test_name="jsonl", test_path=file))
  (tmp_path / "train.jsonl").write_text((tmp_path / "a.jsonl").read_text())
  (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
  monkeypatch.chdir(tmp_path)
  for path, test_path in (
    (file, "a.jsonl"),
    (str(tmp_path), "train.jsonl"),
    (file, "link.jsonl"),
    ("link.jsonl", file),
  ):
    with pytest.raises(SettingError, match="is the file that is trained on"):
      _check_test(_data(name="jsonl", path=path, test_path=test_path))
  apart = _data(name="jsonl", path=file, test_path=other)
  _check_test(apart)
  assert registry.test_data(apart).open()[0].question == "b"


def _check_test(cfg: ConfigDict) -> None:
  registry.check_test(registry.test_data(cfg), registry.train_data(cfg), cfg)


OWN_ADVANTAGES = """
import jax.numpy as jnp

def rank(rollouts, *, eps, temperature=2.0):
  return jnp.full(rollouts.tokens.shape, eps * temperature)

def plain(rollouts):
  return 1.0 * jnp.ones(rollouts.tokens.shape)

def wants(rollouts, *, no_setting):
  return rollouts

def by_position(rollouts, eps):
  return rollouts

def nothing():
  return 0

limit = 3
"""


@pytest.fixture
def own(tmp_path):
  (tmp_path / "own.py").write_text(OWN_ADVANTAGES)
  return f"{tmp_path}/own.py"


def test_an_advantage_is_a_function_that_the_config_names(own):
  r = cases.rollouts()
  shipped = cases.configured(scale="none", ddof=0).advantage(r)
  relative = advantages.group_relative(r.rewards, r.given, scale="none", ddof=0)
  np.testing.assert_array_equal(shipped, advantages.returns_to_go(relative))
  np.testing.assert_array_equal(
    cases.configured(advantage=f"{own}:rank", eps=0.25).advantage(r), 0.5
  )
  np.testing.assert_array_equal(cases.configured(rpg, advantage=f"{own}:plain").advantage(r), 1.0)
  named = cases.configured(advantage="grpo_jax.objectives.advantages:prefix_credit").advantage
  np.testing.assert_array_equal(named(r), cases.configured(advantage="prefix_credit").advantage(r))
  strong = cases.configured(
    advantage="objective_cases:times", advantage_arguments=(("factor", 3.0),)
  )
  score = np.sum(r.rewards * r.given, 2, keepdims=True)
  np.testing.assert_allclose(strong.advantage(r), np.broadcast_to(3 * score, r.tokens.shape))
  batch = cases.prepare(r, cases.settings(advantage=f"{own}:plain"))
  np.testing.assert_array_equal(batch.advantages, batch.mask)


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      dict(advantage="gae"),
      "objective.advantage = 'gae': use .*group_relative.*, or a function of yours",
    ),
    (
      dict(advantage="grpo_jax.objectives.advantages:gae"),
      "has no function 'gae'; it has gdpo, group_relative, ",
    ),
    (
      dict(advantage="OWN:limit"),
      "has no function 'limit'; it has by_position, nothing, plain, rank, wants",
    ),
    (
      dict(advantage="OWN:plain", scale="none"),
      "scale='none' with objective.advantage = .*: use 'group'",
    ),
    (
      dict(advantage="OWN:rank", ddof=0),
      "ddof=0 with objective.advantage = .*, which does not read it: use 1",
    ),
    (
      dict(advantage="gdpo", scale="none"),
      "scale='none' with objective.advantage = 'gdpo', which does not read it",
    ),
    (
      dict(reward_weights=(1.0, 2.0)),
      "reward_weights=(1.0, 2.0) with objective.advantage = 'group_relative'",
    ),
    (
      dict(advantage="OWN:wants"),
      "no_setting is no setting of objective='grpo'; give it a default",
    ),
    (
      dict(advantage="OWN:by_position"),
      "takes (rollouts, eps); it should take rollouts, and settings by keyword",
    ),
    (dict(advantage="OWN:nothing"), "takes (); it should take rollouts"),
    (dict(advantage="nowhere.py:f"), "objective.advantage='nowhere.py:f': no such file nowhere.py"),
  ],
)
def test_an_advantage_that_does_not_fit(changes, message, own):
  changes = {
    name: value.replace("OWN", own) if isinstance(value, str) else value
    for name, value in changes.items()
  }
  with pytest.raises(SettingError) as error:
    cases.settings(**changes)
  assert re.search(message if ".*" in message else re.escape(message), str(error.value)), (
    error.value
  )
  assert "\n" not in str(error.value)


def test_objectives(tmp_path):
  by_path = registry.objective("grpo_jax.objectives.grpo")
  assert registry.objective("grpo") is by_path is grpo.OBJECTIVE
  file = tmp_path / "mine.py"
  file.write_text("from grpo_jax.objectives.sft import *\n")
  assert registry.objective(str(file)) is registry.objective(str(file))  # run once
  (tmp_path / "half.py").write_text("from grpo_jax.objectives.sft import loss\n")
  (tmp_path / "dict.py").write_text("OBJECTIVE = {}\n")
  (tmp_path / "empty.py").write_text(
    "from grpo_jax.objectives.base import Objective\nOBJECTIVE = Objective()\n"
  )
  no_objective = "has no objective; end the file with OBJECTIVE = Objective\\(loss\\), where "
  for name, message in (
    ("grop", "objective.name='grop': no module grpo_jax.objectives.grop; grpo_jax.objectives has "),
    ("common", f"objective.name='common': {no_objective}"),
    (
      "os.path",
      f"os.path': {no_objective}.* has cispo, clip_cov, .*, sft, target_prob, tpo, vespo$",
    ),
    (f"{tmp_path}/half.py", no_objective),
    (f"{tmp_path}/dict.py", no_objective),
    (f"{tmp_path}/empty.py", "empty.py fails to import: TypeError: .*argument: 'loss'"),
    (f"{tmp_path}/none.py", "objective.name=.*none.py.: no such file"),
  ):
    with pytest.raises(SettingError, match=message):
      registry.objective(name)
