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
