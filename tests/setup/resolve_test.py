"""A config becomes an experiment, or is refused."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import Experiment
from grpo_jax.setup.resolve import resolve


def test_defaults_are_an_experiment():
  config = defaults.get_config()
  made = resolve(config)
  assert isinstance(made, Experiment) and made.steps == config.steps


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
