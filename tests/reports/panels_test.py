"""Which metrics of a run are drawn, and together with which."""

from grpo_jax.reports import panels


def test_a_series_leaves_out_what_is_missing():
  steps, values = panels.series(
    [{"step": 0, "kl": 1.0}, {"step": 1}, {"step": 2, "kl": None}, {"step": 3, "kl": 2.0}], "kl"
  )
  assert (steps.tolist(), values.tolist()) == ([0, 3], [1, 2])
  assert [len(x) for x in panels.series([], "kl")] == [0, 0]


def test_groups_without_variance_are_drawn():
  (panel,) = panels.drawn([{"step": 1, "zero_variance": 0.5}])
  assert panel.title == "shares"


def test_a_teacher_is_drawn():
  rows = [{"step": 1, "divergence": 0.5, "teacher/taught": 0.8}]
  assert [panel.title for panel in panels.drawn(rows)] == [
    "divergence from the teacher (nats)",
    "shares",
  ]


def test_a_reward_model_is_seen_to_learn():
  lines = [{"step": 0, "eval/pair_accuracy": 0.5}, {"step": 1, "eval/step_accuracy": 0.6}]
  (panel,) = panels.drawn(lines)
  assert panel.title == "reward model, held-out data" and panel.share
