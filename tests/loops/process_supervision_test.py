"""The experiments with reward models, at a small size from end to end: one leaves what the other is
rewarded by.
"""

import json
import pathlib
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from experiments import arithmetic, arithmetic_iterative, arithmetic_process
from grpo_jax.loops import iterative, online
from grpo_jax.setup import build
from grpo_jax.setup.resolve import resolve


def small(config: ConfigDict, **changes: Any) -> ConfigDict:
  """The config at a size that takes seconds, from the warm start that ships."""
  size = {
    "data.prompts": 4,
    "sampler.group": 4,
    "sampler.slots": 0,
    "sampler.max_length": 32,
    "sampler.tries": 1,
  }
  tests = {
    "eval.problems": 4,
    "eval.batch": 4,
    "eval.samples": 0,
    "log.writers": (),
    "log.measure_every": 0,
  }
  config.update_from_flattened_dict(size | tests | {"learner.sizes": 1} | changes)
  return config


def lines(folder: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_a_reward_model_that_learned_beside_one_policy_rewards_the_steps_of_another(
  tmp_path, monkeypatch
):
  make = build.model
  monkeypatch.setattr(
    build, "model", lambda config, scores=False: make(config, jax.devices()[:1], scores)
  )
  first = small(arithmetic_iterative.get_config(f"reward_model={arithmetic.WARM_START}"), steps=2)
  first.rewards.functions = (("steps", "steps.steps_correct", 0.0),)
  first.iterative.update({"steps": 1, "labels": "steps", "pairs": 4})
  iterative.train(resolve(first), str(tmp_path / "iterative"))
  taught = [line for line in lines(tmp_path / "iterative") if "reward_model/updates" in line]
  assert [line["iteration"] for line in taught] == [1, 2] and all(
    line["reward_model/new"] > 0 for line in taught
  )

  folder = tmp_path / "iterative" / "reward_model"
  online.train(
    resolve(small(arithmetic_process.get_config(f"reward_model={folder},outcome=true"), steps=1)),
    str(tmp_path / "p"),
  )
  (line,) = [line for line in lines(tmp_path / "p") if "reward/judge" in line]
  assert (
    line["rewards_given"] > 1 and 0 < line["reward/judge"] < 1 and 0 <= line["reward/steps"] <= 1
  )
  assert (
    line["reward/mean"] > line["reward/judge"]
    and "reward/correct" in line
    and line["grad_norm"] > 0
  )
