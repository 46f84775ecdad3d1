"""Configures the tiny runs that `python -m experiments.measure.drill` kills.

Its argument is the key of RUNS, as in --config=tests/helpers/drilled.py:carried_episodes.
"""

import pathlib
import sys

from ml_collections import ConfigDict

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_runs
from tiny_episodes import EPISODES

# Four digits in ten end a completion. With so few slots some samples wait when a step ends. Tests
# have eight devices, each with a group of the step and one that may be carried.
CARRIED = {
  "steps": 4,
  "data.prompts": 8,
  "sampler.carry": 8,
  "sampler.slots": 16,
  "sampler.max_length": 12,
  "sampler.stop": tuple("0123"),
  "objective.mismatch": "token",
  "eval.problems": 8,
  "eval.batch": 8,
  "eval.samples": 2,
  "checkpoint.every": 2,
}
CARRIED_EPISODES = EPISODES | {"sampler.carry": 4, "objective.mismatch": "token"}
RUNS = {"carried": CARRIED, "episodes": EPISODES, "carried_episodes": CARRIED_EPISODES}


def get_config(name: str) -> ConfigDict:
  """Returns the settings of one of RUNS with so many steps that kills come in each phase of them."""
  return tiny_runs.config(RUNS[name] | {"steps": 30})
