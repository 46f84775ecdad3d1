"""Turns a config into an `Experiment`, or refuses it.

Checks that need the mesh and the model's shape follow when a loop has made these (checks.check).
"""

from ml_collections import ConfigDict

from grpo_jax.config import sections
from grpo_jax.setup import checks, experiment, modules
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer import steps


def resolve(config: ConfigDict) -> Experiment:
  """Returns the experiment of a config, after all checks that need no weights, data or devices."""
  modules.forget_changed()
  sections.check(config)
  steps.pattern(config.data.steps)  # raises if it is no regular expression
  resolved = experiment.make(config)
  checks.check_settings(resolved)
  return resolved
