"""Whole runs of the loop that samples, scores and learns, at the smallest size."""

import json

import documented
import pytest
import tiny_runs

from grpo_jax.loops import online
from grpo_jax.setup import defaults
from grpo_jax.setup.resolve import resolve

SHORT = {
  "eval.problems": 0,
  "checkpoint.every": 1,
  "checkpoint.export": False,
  "learner.schedule": "constant",  # more steps are the same run
  "mesh.fsdp": 4,
  "mesh.group": 2,
}


@pytest.mark.slow
def test_a_run_of_ppo_goes_from_end_to_end_and_is_resumed(tmp_path):
  """A critic that shared arrays with the policy would be donated twice, and the first update would
  fail.
  """
  objective = defaults.objective("ppo", tiny_runs.config({}))
  for steps in (1, 2):
    c = tiny_runs.config(SHORT | {"steps": steps, "objective.beta": 0.0})
    c.objective = objective
    online.train(resolve(c), str(tmp_path))
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert documented.unexplained(lines) == []
  lines = [line for line in lines if "loss" in line]
  assert [line["step"] for line in lines] == [1, 2]
  assert all(
    line["skipped_steps"] == 0 and line["grad_norm"] > 0 and line["value_loss"] > 0
    for line in lines
  )
