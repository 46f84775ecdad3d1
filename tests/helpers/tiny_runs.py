"""The config of a tiny run that learns something, for tests of whole runs: in this process, or in
others (`source`).
"""

import json
import pathlib
from typing import Any

import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from grpo_jax.setup import defaults
from grpo_jax.types import Completion, Example

PARITY = f"{__file__}:parity"
TINY = {
  "tokenizer": "words",
  "model.variant": "test_qwen3",
  "data.arithmetic.size": 512,  # the tokenizer is made from all of them
  "data.prompts": 4,
  "sampler.group": 4,
  "sampler.max_length": 8,
  "rewards.functions": (("parity", PARITY, 1.0),),
  "objective.beta": 0.04,
  "learner.lr": 1e-2,
  "log.measure_every": 0,
  "log.samples_every": 0,
  "log.writers": (),
  "compilation_cache": "",  # what any test compiles is kept already (conftest.py)
}
# Iterations of two steps, with pairs for a reward model in each.
ITERATIVE = {
  "loop": "iterative",
  "sampler.stop": tuple("0123456789"),
  "rewards.functions": (("parity", PARITY, 0.1),),
  "iterative.labels": "parity",
  "iterative.steps": 2,
  "iterative.pairs": 4,
  "iterative.replay": 0.25,
  "iterative.reward_model_lr": 1e-2,
}


def parity(example: Example, completion: Completion) -> float:
  return sum(completion.tokens) % 5 / 4


def config(changes: dict[str, Any]) -> ConfigDict:
  """The default settings with TINY's, and with others by their dotted names."""
  c = defaults.get_config()
  c.update_from_flattened_dict(TINY | changes)
  return c


def source(changes: dict[str, Any]) -> str:
  """A config file of `config(changes)`, for `--config`."""
  return f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import tiny_runs

def get_config():
  return tiny_runs.config({changes!r})
"""


def metrics_of_steps(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of metrics.jsonl that the steps of a run wrote, without those of evaluations."""
  text = (folder / "metrics.jsonl").read_text()
  return [line for line in map(json.loads, text.splitlines()) if "loss" in line]


def swap_words(run: pathlib.Path) -> None:
  """Swaps the ids of two tokens in a run's folder, as if it had learned another tokenizer."""
  path = run / "model" / "tokenizer.json"
  whole = json.loads(path.read_text())
  words = whole["model"]["vocab"]
  words["1"], words["2"] = words["2"], words["1"]
  path.write_text(json.dumps(whole))


def as_json(config: ConfigDict) -> dict[str, Any]:
  """A config as DIR/config.json has it."""
  return json.loads(config.to_json_best_effort())
