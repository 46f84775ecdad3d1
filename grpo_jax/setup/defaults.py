"""Makes the config with every setting at its default: an experiment starts from it.

The table of config/settings.py has all settings except those of objectives and data sets, which are
in their own files. The config is locked once a command has built it, so that a misspelt
`--config.learner.lrr=1` is an error.
"""

from ml_collections import ConfigDict

from grpo_jax.config import sections
from grpo_jax.setup import modules, registry


def get_config() -> ConfigDict:
  """Returns a config with all defaults, those of every data set and of the objective included."""
  modules.forget_changed()
  config = sections.defaults()
  for name in sections.DATA_SETS:
    config.data[name] = registry.data(name).settings()
  config.objective = objective(config.objective.name, config)
  return config


def objective(name: str, config: ConfigDict) -> ConfigDict:
  """Returns the `objective` section of an objective with its defaults.

  Args:
    name: the value of `objective.name`.
    config: its `sampler.max_length` is what the objective's `max_length` refers to.
  """
  section = ConfigDict({"name": name})
  section.update(registry.objective_defaults(name))
  if "max_length" in section:
    section.max_length = config.sampler.get_ref("max_length")
  return section
