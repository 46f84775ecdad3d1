"""What log.writers names: classes that ship, of a file, and what is refused."""

import re
import sys
import textwrap

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup import outputs
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

MINE = """
class Writer:
  def __init__(self, folder, config, first_step):
    if first_step > 9:
      raise OSError("no\\nserver")
    self.made = folder, config["steps"], first_step

  def write(self, step, metrics):
    pass

  def close(self):
    pass
"""


def test_a_class_of_a_file_gets_the_folder_the_config_and_the_first_step(config, tmp_path):
  (tmp_path / "mine.py").write_text(MINE)
  name = str(tmp_path / "mine.py")
  config.log.writers, config.steps = ("tensorboard", name), 7
  made = outputs.make(make(config))
  assert list(made) == ["tensorboard", name]
  assert made[name]("runs/a", 3).made == ("runs/a", 7, 3)
  with pytest.raises(SettingError, match="does not start: OSError: no server; mend it, or leave"):
    made[name]("runs/a", 10)


@pytest.mark.parametrize(
  "text, said",
  [
    ("x = 1", "it has no class Writer; see grpo_jax/writers/__init__.py"),
    ("class Writer:\n  def write(self): pass", "its Writer has no method 'close'"),
  ],
)
def test_what_is_no_writer_is_refused_when_the_run_is_loaded(config, tmp_path, text, said):
  (tmp_path / "other.py").write_text(textwrap.dedent(text))
  config.log.writers = (str(tmp_path / "other.py"),)
  with pytest.raises(SettingError, match=f"^log.writers has .*{re.escape(said)}"):
    resolve(config)


def test_a_name_that_does_not_exist_is_refused(config):
  config.log.writers = ("tensorbord",)
  with pytest.raises(SettingError, match="'tensorbord': no module .* tensorboard, trackio, wandb$"):
    resolve(config)


def test_a_package_that_is_missing_is_named(config, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  monkeypatch.delitem(sys.modules, "grpo_jax.writers.wandb", raising=False)
  config.log.writers = ("wandb",)
  with pytest.raises(SettingError, match="wandb needs wandb, which is not installed"):
    resolve(config)
