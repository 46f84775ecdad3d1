"""The learner of a run."""

from typing import Any

import tiny
import tiny_runs
from passed_on_test import WRITER, groups, stub

from grpo_jax.loops import learner
from grpo_jax.setup.experiment import make


def test_updates_are_measured_every_so_often_and_their_rate_is_told(monkeypatch):
  own = learner.Learner.__new__(learner.Learner)
  own.model, own.measure_every, own.state = stub(layout=None), 2, None
  own.sizes = stub(for_learner=lambda batch: (batch, None), microbatches=1)
  own.rate = lambda count: 10 * count
  made = iter(range(1, 6))
  own.jitted_learn = lambda *args: (stub(step=next(made), skipped=0, params=None), {}, None)
  own.jitted_movement = lambda *args: ({"moved_nats": 1.0}, "before", "after")
  monkeypatch.setattr(learner.rollouts, "to_device", lambda layout, x: x)
  monkeypatch.setattr(learner.plan, "padding", lambda *args: {})
  found = [own.learn(step, groups(1), WRITER) for step in range(5)]
  assert [each.moved for each in found] == [
    ("before", "after") if step % 2 == 0 else None for step in range(5)
  ]
  assert [each.metrics["lr"] for each in found] == [0, 10, 20, 30, 40]


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
