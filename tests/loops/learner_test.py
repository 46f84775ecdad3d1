"""The learner of a run."""

import gc
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_runs
from passed_on_test import WRITER, groups, stub

from grpo_jax.errors import TrainingError
from grpo_jax.loops import learner
from grpo_jax.setup.experiment import make


def of_updates(monkeypatch, metrics):
  """Returns a learner whose updates give these metrics."""
  own = learner.Learner.__new__(learner.Learner)
  own.model, own.measure_every, own.state = stub(layout=None), 2, None
  own.sizes = stub(for_learner=lambda batch: (batch, None), microbatches=1)
  own.rate = lambda count: 10 * count
  made = iter(range(1, 6))
  own.jitted_learn = lambda *args: (
    stub(step=next(made), skipped=0, params=None),
    dict(metrics),
    None,
  )
  own.jitted_learn._cache_size = lambda: 1
  monkeypatch.setattr(learner.rollouts, "to_device", lambda layout, x: x)
  monkeypatch.setattr(learner.plan, "padding", lambda *args: {})
  return own


def test_updates_are_measured_every_so_often_and_their_rate_is_told(monkeypatch):
  own = of_updates(monkeypatch, {})
  one = jnp.ones((1, 1))
  numbers = {"moved_nats": jnp.float32(1), "tokens/short": jnp.float32(jnp.nan)}
  moved = learner.Movement(numbers, one, one, one, None, None)
  own.jitted_movement = lambda *args: moved
  found = [own.learn(step, groups(1), WRITER) for step in range(5)]
  assert [each.moved is not None for each in found] == [step % 2 == 0 for step in range(5)]
  assert [each.metrics.get("moved_nats") for each in found] == [1.0, None] * 2 + [1.0]
  assert not any("tokens/short" in each.metrics for each in found)  # no token had an advantage
  assert [each.metrics["lr"] for each in found] == [0, 10, 20, 30, 40]


@pytest.mark.parametrize(
  "metrics, said",
  [
    ({"grad_norm": 0.0, "advantage_abs": 0.5}, ["no gradient"]),
    ({"grad_norm": 0.0, "advantage_abs": 0.0}, []),
    ({"grad_norm": 1e-9, "advantage_abs": 0.5}, []),
    ({"loss": 0.5, "spread": math.nan, "ratio": 1.0}, ["odd metrics"]),
    ({"loss": math.nan, "spread": math.nan}, []),
  ],
)
def test_a_step_that_trains_nothing_or_has_odd_metrics_is_told(metrics, said, monkeypatch):
  own, found = of_updates(monkeypatch, metrics), {}
  own.measure_every, own.experiment = 0, stub(objective=stub(name="mine.py"))
  own.learn(2, groups(1), stub(phase=WRITER.phase, warn=found.__setitem__))
  assert list(found) == said
  assert all(text.startswith("step 3: the ") for text in found.values())
  assert all(text.endswith(" (objective.name='mine.py')") for text in found.values())


def test_a_schedule_is_of_all_updates_of_a_run(monkeypatch):
  totals = []
  monkeypatch.setattr(learner.optimizer, "schedule", lambda cfg, total: totals.append(total))
  monkeypatch.setattr(
    learner.optimizer, "make_optimizer", lambda cfg, total, critic: totals.append(total)
  )
  c = tiny_runs.config(
    {"steps": 5, "learner.mu": 3, "learner.minibatches": 2, "objective.beta": 0.0}
  )
  model: Any = stub(
    decoder=stub(config=stub(scores=False), lora=None, dtype="float32"), layout=tiny.layout()
  )
  monkeypatch.setattr(learner.learn, "make_learn", lambda setup: None)
  monkeypatch.setattr(learner.movement, "make_movement", lambda setup: None)
  learner.Learner(make(c), model, 1.0)
  assert totals == [30, 30]


@pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="not on Linux")
def test_a_run_of_many_shapes_keeps_few_programs_and_their_memory():
  @jax.jit
  def f(x):
    return jnp.sin(x) @ jnp.cos(x).T

  def mappings():
    gc.collect()
    return pathlib.Path("/proc/self/maps").read_text().count("\n")

  def run(sizes):
    for size in sizes:
      f(np.ones((size, 5), np.float32))
      learner.bound_programs(f)
      assert f._cache_size() < learner.PROGRAMS
    return mappings()

  f(np.ones((1, 5), np.float32))
  before, kept = mappings(), []
  for size in range(2, learner.PROGRAMS):
    f(np.ones((size, 5), np.float32))
    kept.append(f._cache_size())
  all_kept = mappings()
  assert kept[-1] == learner.PROGRAMS - 1 and all_kept > before
  assert run(range(100, 100 + 4 * learner.PROGRAMS)) - before < 2 * (all_kept - before)


def test_a_critic_that_is_not_finite_is_said_beside_the_policy():
  own: Any = stub(
    state=stub(bad_steps=3),
    cfg=stub(max_bad_steps=3, lr=0.5),
    RATE=learner.Learner.RATE,
    METRICS=learner.Learner.METRICS,
  )
  numbers = {"loss": 0.1, "grad_norm": 0.5, "critic_grad_norm": np.inf}
  with pytest.raises(TrainingError, match=r"\(loss 0.1, gradient norm 0.5, of the critic inf\)"):
    learner.Learner.check_finite(own, numbers, lambda: "")


def test_the_effective_share_of_weights():
  """1 where all are equal; of one weight among n, 1 / n."""
  for weights, share in (([2.0, 2.0], 1.0), ([0.0, 0.0, 0.0, 5.0], 0.25), ([1.0, 3.0], 0.8)):
    w = np.asarray(weights)
    assert learner.effective_share(w.mean(), (w**2).mean()) == pytest.approx(share)
  assert math.isnan(learner.effective_share(0.0, 0.0))
