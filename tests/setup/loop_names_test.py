"""Loops of the package, and of a user's own."""

import pytest
import tiny

from grpo_jax.errors import SettingError
from grpo_jax.loops import offline
from grpo_jax.setup import checks, defaults, loop_names
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve


def written(folder, text):
  """Writes a file with a loop and returns its path."""
  file = folder / "my_loop.py"
  file.write_text(text)
  return str(file)


def train(like):
  return f"LIKE = {like!r}\ndef train(experiment, workdir): pass\n"


@pytest.mark.parametrize("name", loop_names.KINDS)
def test_those_of_the_package_are_like_themselves(name):
  assert loop_names.kind(name) == name


def test_a_module_by_its_import_path():
  assert loop_names.find("grpo_jax.loops.offline") is offline


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("", "its function train is not there"),
    ("train = 3", "its function train is not there"),
    ("def train(config): pass", r"is not as train\(experiment, workdir\)"),
    ("def train(experiment, workdir): pass", "has no LIKE; .* write LIKE = 'online'"),
    (train("onlin"), "LIKE is 'onlin' in it; .* or one of iterative, offline"),
    ("import nothing_of_this_name", "fails to import: ModuleNotFoundError"),
  ],
)
def test_one_that_does_not_fit_is_refused(tmp_path, text, says):
  with pytest.raises(SettingError, match=f"loop='.*my_loop.py': .*{says}"):
    loop_names.kind(written(tmp_path, text))


def config(loop, **changes):
  c = defaults.get_config()
  c.loop = loop
  for name, value in changes.items():
    section, _, last = name.partition("__")
    (c[section] if last else c)[last or section] = value
  return c


def test_it_reads_the_settings_of_the_loop_that_it_is_like(tmp_path):
  live = written(tmp_path, train("online"))
  assert make(config(live)).source == "live"
  assert resolve(config(live, learner__mu=2)).learner.mu == 2
  with pytest.raises(SettingError, match=r"offline.held_out=7: is not of loop='.*my_loop.py'"):
    resolve(config(live, offline__held_out=7))


def test_it_is_refused_what_that_loop_is_refused(tmp_path):
  stored = written(tmp_path, train("offline"))
  assert make(config(stored)).source == make(config("offline")).source
  with pytest.raises(SettingError, match="learner.mu=2"):
    checks.check(make(config(stored, learner__mu=2)), tiny.decoder())
