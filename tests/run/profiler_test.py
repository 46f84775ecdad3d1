"""The profiler's window: it is opened once and always closed, wherever a run begins and ends."""

import jax
import pytest
from ml_collections import ConfigDict

from grpo_jax.run.profiler import Profiler


@pytest.mark.parametrize(
  "first, last, said",
  [
    (0, 9, ["start", "stop"]),  # before step 2, after step 4
    (3, 9, ["start", "stop"]),  # a run that goes on inside the window
    (5, 9, []),
    (0, 3, ["start", "stop"]),  # a run that ends inside it
    (0, 4, ["start", "stop"]),
    (0, 1, []),
  ],
)
def test_what_is_started_is_stopped(first, last, said, monkeypatch):
  calls = []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append("start"))
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
  profiler = Profiler(ConfigDict({"first_step": 2, "steps": 3}), "folder")
  for step in range(first, last + 1):
    profiler.before(step)
    assert (calls.count("start") > calls.count("stop")) == (step in (2, 3, 4))
    profiler.after(step)  # what follows the window is not recorded
    assert (calls.count("start") > calls.count("stop")) == (step in (2, 3))
  profiler.close()
  profiler.close()
  assert calls == said


def test_without_a_window_nothing_is_recorded(monkeypatch):
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: pytest.fail("started"))
  profiler = Profiler(ConfigDict({"first_step": 0, "steps": 0}), "folder")
  profiler.before(0)
  profiler.close()
