"""Tests the weight of the entropy bonus, adapted to a target."""

import jax
import numpy as np
import optax
import pytest
import tiny
import tiny_runs
from learn_test import TEMPERATURE, Bigrams, table

from grpo_jax.errors import SettingError
from grpo_jax.learning import entropy_control, learn, passes
from grpo_jax.learning.entropy_control import Control
from grpo_jax.learning.state import create
from grpo_jax.loops import online
from grpo_jax.packing.plan import Packing
from grpo_jax.setup import checks, defaults
from grpo_jax.setup.resolve import resolve


def test_the_weight_rises_below_the_target_and_falls_above_it():
  control = Control(0.01)
  assert entropy_control.bonus(control, 0.2) == 0.01
  control = entropy_control.after(control, 0.1, 0.2, 0.005, 0.1)
  assert control == Control(0.015, 0.1) and entropy_control.bonus(control, 0.2) == 0.015
  control = entropy_control.after(control, 0.3, 0.2, 0.005, 0.1)
  assert control == Control(pytest.approx(0.01), 0.3) and entropy_control.bonus(control, 0.2) == 0.0
  for _ in range(3):
    control = entropy_control.after(control, 0.3, 0.2, 0.005, 0.1)
  assert control.weight == 0.0
  for _ in range(3):
    control = entropy_control.after(control, 0.1, 0.2, 0.005, 0.012)
  assert control.weight == 0.012
  at_target = entropy_control.after(control, 0.2, 0.2, 0.005, 0.012)
  assert at_target.weight == pytest.approx(0.007)
  assert entropy_control.bonus(at_target, 0.2) == 0.0


@pytest.mark.parametrize("entropy", [0.0, float("nan"), float("inf")])
def test_a_step_that_says_nothing_of_the_entropy_changes_nothing(entropy):
  """The mean over no token is 0, as where every completion is truncated and masked."""
  assert entropy_control.after(Control(0.01, 0.3), entropy, 0.2, 0.005, 0.1) == Control(0.01, 0.3)


@pytest.mark.parametrize("microbatch", [0, 2])
def test_an_update_with_a_weight_is_that_of_the_bonus(microbatch):
  def after(bonus, weight):
    cfg, tx = tiny.section("learner", chunk=64, microbatch=microbatch), optax.sgd(1.0)
    objective = tiny.objective(entropy_bonus=bonus)
    update = learn.make_learn(passes.Setup(Bigrams(tiny.layout()), objective, tx, cfg, TEMPERATURE))
    state = create({"policy": jax.device_put(table(), tiny.layout().replicated())}, tx)
    arguments = (None, None, tiny.rollouts(), Packing(), None, None, weight)
    return jax.device_get(update(state, *arguments)[0].params["policy"])

  jax.tree.map(np.testing.assert_array_equal, after(0.0, 0.3), after(0.3, None))
  with pytest.raises(AssertionError):
    jax.tree.map(np.testing.assert_array_equal, after(0.3, 0.0), after(0.3, None))


def config(**changes):
  short = {
    "eval.problems": 0,
    "checkpoint.every": 1,
    "checkpoint.export": False,
    "learner.schedule": "constant",
    "mesh.fsdp": 4,
    "mesh.group": 2,
    "objective.beta": 0.0,
  }
  return tiny_runs.config(short | changes)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_adapts_the_weight_and_is_resumed_with_it(tmp_path):
  def lines(folder, steps):
    weight = {"entropy_target": 50.0, "entropy_step": 0.25, "entropy_max": 1.0}
    changes = {"steps": steps} | {f"learner.{name}": value for name, value in weight.items()}
    online.train(resolve(config(**changes)), str(folder))
    return tiny_runs.metrics_of_steps(folder)

  lines(tmp_path / "two", 2)
  resumed, whole = lines(tmp_path / "two", 3), lines(tmp_path / "one", 3)
  assert [line["entropy_weight"] for line in whole] == [0.0, 0.25, 0.5]
  for name in ("entropy_weight", "loss", "entropy"):
    assert [line[name] for line in resumed] == [line[name] for line in whole]


def test_an_objective_without_a_bonus_is_refused():
  c = config()
  c.objective = defaults.objective("rft", c)
  c.learner.entropy_target = 0.2
  with pytest.raises(SettingError, match="learner.entropy_target=0.2: .*has no entropy_bonus"):
    checks.check_settings(resolve(c))


def test_a_weight_that_starts_above_its_largest_is_refused():
  c = config(**{"learner.entropy_target": 0.2, "objective.entropy_bonus": 0.01})
  with pytest.raises(SettingError, match="entropy_bonus=0.01: .*use at most learner.entropy_max"):
    checks.check_settings(resolve(c))
