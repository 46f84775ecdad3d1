"""A config becomes an experiment, or is refused."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import Experiment, make
from grpo_jax.setup.resolve import resolve


def test_defaults_are_an_experiment():
  config = defaults.get_config()
  made = resolve(config)
  assert isinstance(made, Experiment) and made.steps == config.steps


def test_a_tilde_is_the_home_directory_in_every_setting_of_a_folder(monkeypatch):
  """Expands those in rows, too, and leaves the config of the caller as it is."""
  monkeypatch.setenv("HOME", "/home/me")
  config = defaults.get_config()
  config.data.path, config.ref_from = "~/d", "~/r"
  config.data.mixture = (("arithmetic", "~/m", 1.0), ("gsm8k", "m", 1.0))
  config.data.test_name = "arithmetic"
  config.rewards.outcome_models = (("judge", "~/o", 1.0),)
  config.rewards.process_models = (("steps", "~/p", 0.5),)
  made = make(config)
  assert (made.data.path, made.ref_from) == ("/home/me/d", "/home/me/r")
  assert [row[1] for row in made.data.mixture] == ["/home/me/m", "m"]
  assert [model.folder for model in made.reward_models] == ["/home/me/o", "/home/me/p"]
  assert config.data.path == "~/d" and config.rewards.outcome_models[0][1] == "~/o"
  config.rewards.outcome_models = (("judge", "~nobody_here/o", 1.0),)
  with pytest.raises(SettingError, match="^rewards.outcome_models='~nobody_here/o': there is no"):
    make(config)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("steps", 0),  # out of its range
    ("data.steps", "("),  # no pattern
    ("eval.reward", "math.none"),  # a name that stands for nothing
    ("data.system", "a"),  # that no run would read
  ],
)
def test_each_kind_of_check_refuses_in_one_line(name, value):
  config = defaults.get_config()
  config.rewards.functions = (("worked", "format.worked", 1.0),)
  config.update_from_flattened_dict({name: value})
  with pytest.raises(SettingError, match=f"^{name}=[^\\n]*$"):
    resolve(config)


def test_an_edited_file_is_read_by_the_next_experiment(tmp_path):
  file, functions = tmp_path / "mine.py", []
  for value in (1.0, 2.0):
    config = defaults.get_config()
    file.write_text(f"def f(example, completion):\n  return {value}\n")  # after the config is made
    config.rewards.functions = (("mine", f"{file}:f", 1.0),)
    functions.append(resolve(config).reward_functions[0].reward.score)
  assert [f(None, None) for f in functions] == [1.0, 2.0]


def test_an_edited_objective_has_its_new_settings(tmp_path):
  file = tmp_path / "mine.py"
  for setting in ("gain", "loss"):
    file.write_text(
      "from ml_collections import ConfigDict\nfrom grpo_jax.objectives.base import Objective\n"
      f"OBJECTIVE = Objective(lambda outputs, batch, cfg: (0, {{}}), settings=lambda: ConfigDict({{'{setting}': 1.0}}))\n"
    )
    assert setting in defaults.objective(str(file), defaults.get_config())
