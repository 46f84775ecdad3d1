"""An iterative run that is killed in any phase, or stopped, is bit for bit the run that was not."""

import signal

import pytest
import resume_test
import tiny_runs

CONFIG = tiny_runs.source(
  tiny_runs.ITERATIVE
  | {
    "steps": 4,
    "data.arithmetic.size": 64,
    "learner.sizes": 1,
    "eval.problems": 4,
    "eval.batch": 4,
    "eval.samples": 0,
    "checkpoint.every": 3,
  }
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  return resume_test.Runs(tmp_path_factory.mktemp("iterative"), CONFIG)


@pytest.fixture(scope="module")
def expected(runs):
  """What a run that nothing happens to leaves."""
  said = runs.finish("undisturbed").stdout
  assert (
    "iteration 1: accuracy" in said
    and "iteration 2: accuracy" in said
    and "of its new pairs" in said
  ), said
  numbers = runs.numbers("undisturbed")
  taught = [line for line in numbers["metrics"] if line.get("reward_model/updates")]
  assert [line["step"] for line in taught] == [2, 4]
  return numbers


def reward_model(runs, workdir):
  return (runs.folder / workdir / "reward_model" / "model.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.slow
def test_killed_in_each_phase(runs, expected):
  for strike in (("sample", 2), ("learn", 2), ("teach", 1), ("save", 1, 0.02), ("teach", 1)):
    runs.struck("killed", *strike)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", expected)
  assert reward_model(runs, "killed") == reward_model(runs, "undisturbed")


@pytest.mark.slow
def test_a_stop_in_the_first_step_of_an_iteration_loses_no_step(runs, expected):
  stopped = runs.struck("stopped", "sample", 3, number=signal.SIGTERM)
  assert "SIGTERM: saved after step 2 of 4" in stopped.stdout.replace("\n", " "), (
    stopped.stdout + stopped.stderr
  )
  assert runs.steps_saved("stopped")[-1] == 2
  runs.finish("stopped")
  runs.assert_as_if_not_struck("stopped", expected)
  assert reward_model(runs, "stopped") == reward_model(runs, "undisturbed")
