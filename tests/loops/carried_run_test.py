"""Runs whose unfinished groups go on after an update, in this process and in others."""

import json

import pytest
import resume_test
import tiny_runs
from drilled import CARRIED, CARRIED_EPISODES

from grpo_jax.loops import iterative, online
from grpo_jax.setup.resolve import resolve

TIMINGS = ("time/", "tokens_per_s/")


def numbers(folder):
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in line.items() if not k.startswith(TIMINGS)} for line in lines]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_learns_from_groups_that_an_update_interrupted(tmp_path, capsys):
  """Their ages are logged, and the sampler's log-probs are those of the policies that sampled."""
  online.train(resolve(tiny_runs.config(CARRIED)), str(tmp_path))
  steps = tiny_runs.metrics_of_steps(tmp_path)
  assert [line["step"] for line in steps] == [1, 2, 3, 4]
  assert steps[0]["carry/share"] == 0 < max(line["carry/share"] for line in steps)
  stale = [line for line in steps if line["carry/share"]]
  assert all(line["mismatch_kl"] > 1e-7 and line["mismatch_ess"] < 1 for line in stale)
  assert steps[0]["mismatch_kl"] < 1e-9 and steps[0]["mismatch_ess"] == pytest.approx(1)
  assert all(0 <= line["carry/groups"] <= 8 and line["carry/age_max"] <= 2 for line in steps)
  assert "carry" not in "".join(
    line for line in capsys.readouterr().out.splitlines() if "warn" in line
  )


@pytest.mark.parametrize(
  "loop",
  [
    pytest.param(online, marks=pytest.mark.slow),
    pytest.param(iterative, marks=[pytest.mark.slow, pytest.mark.long]),
  ],
)
def test_stale_tokens_that_nothing_weighs_are_told(tmp_path, capsys, loop):
  changes = {"objective.mismatch": "none", "steps": 1, "eval.problems": 0}
  if loop is iterative:
    changes = tiny_runs.ITERATIVE | {"iterative.steps": 1, "iterative.pairs": 8} | changes
  loop.train(resolve(tiny_runs.config(CARRIED | changes)), str(tmp_path))
  told = "sampler.carry is above 0 and objective.mismatch='none'"
  assert capsys.readouterr().out.count(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  "more",
  [
    {},
    pytest.param({"sampler.tries": 2}, marks=pytest.mark.long),
    pytest.param({"data.redraw": 0.5}, marks=pytest.mark.long),
  ],
  ids=str,
)
def test_a_resumed_run_goes_on_with_what_was_unfinished(tmp_path, more):
  """Dynamic sampling and a pool of prompts too; one step at a time, and all at once."""
  for steps in (1, 2, 3):
    c = {"steps": steps, "checkpoint.every": 1, "learner.schedule": "constant", "eval.problems": 0}
    whole = tiny_runs.config(CARRIED | c | {"eval.reward": tiny_runs.PARITY} | more)
    online.train(resolve(whole), str(tmp_path / "parts"))
  online.train(resolve(whole), str(tmp_path / "whole"))
  assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
  "phase, count",
  [("sample", 2), ("sample", 3), ("sample", 4), ("score", 3), ("learn", 4), ("save", 2)],
)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path, phase, count):
  runs = resume_test.Runs(tmp_path, tiny_runs.source(CARRIED))
  runs.finish("whole")
  runs.struck("killed", phase, count, seconds=0.05)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", runs.numbers("whole"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("phase, count", [("sample", 3), ("learn", 4)])
def test_carried_episodes_survive_a_kill(tmp_path, phase, count):
  runs = resume_test.Runs(tmp_path, tiny_runs.source(CARRIED_EPISODES))
  runs.finish("whole")
  shares = [line.get("carry/share", 0) for line in numbers(tmp_path / "whole")]
  assert max(shares) > 0
  runs.struck("killed", phase, count, seconds=0.05)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", runs.numbers("whole"))
