"""Evaluations during a run."""

import contextlib
import dataclasses
import types
from typing import Any

import pytest
import tiny_runs
from absl import flags

from experiments import evaluate as evaluate_command
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import evaluator
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.types import Completion, Example


def test_before_and_after_are_compared_by_one_verifier(config):
  config.eval.reward, config.eval.arguments = "exact.exact_match", (("case", True),)
  model = build.model(make(config))
  strict = evaluator.Evaluator(make(config), model).tested()
  config.eval.arguments = (("case", False),)
  assert evaluator.Evaluator(make(config), model).tested() != strict


def test_the_two_passes_of_an_evaluation_are_told_apart(config, monkeypatch):
  config.eval.samples = 3
  evaluate = evaluator.Evaluator(make(config), build.model(make(config)))
  monkeypatch.setattr(evaluate, "solve", lambda *args, **more: args[3](1, 2))
  monkeypatch.setattr(evaluate, "warnings", lambda metrics: ())
  for name in ("metrics_of", "learned_metrics"):
    monkeypatch.setattr(evaluator.policy, name, lambda *outcomes: {})
  shown = []
  writer: Any = types.SimpleNamespace(
    phase=lambda name: contextlib.nullcontext(),
    progress=lambda *args: shown.append(args),
    evaluation=lambda *args: None,
  )
  evaluate(writer, {}, 0, samples=True)
  assert shown == [("eval, greedy answers:", 1, 2), ("eval, 3 samples each:", 1, 2)]


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("choice.choice_correct", "ValueError: the answer '.*' is not the letter of an option"),
    ("steps.steps_correct", ""),
    (f"{__file__}:leaves", "ValueError: called sys.exit"),
    (f"{__file__}:hangs", r"took longer than 0.1 s \(rewards.deadline\)"),
    (f"{__file__}:talks", "TypeError: returned 'very good', which is no number"),
  ],
)
def test_a_reward_that_cannot_score_the_test_data(config, name, message):
  config.eval.reward, config.rewards.deadline = name, 0.1
  model = build.model(make(config))
  if not message:
    evaluator.Evaluator(make(config), model)
    return
  with pytest.raises(
    SettingError, match=f"eval.reward='{name}': cannot score the test data: {message}.*; use"
  ):
    evaluator.Evaluator(make(config), model)


def test_an_evaluation_whose_reward_returns_nothing_says_so(config):
  config.eval.reward = f"{__file__}:forgets"
  found = evaluator.Evaluator(make(config), build.model(make(config)))
  assert not found.warnings({"accuracy": 0.0})  # nothing was asked yet
  example, completion = found.problems[0], Completion("", [1], 1, [])
  found.reward.score(example, completion)
  ((_, said),) = found.warnings({"accuracy": 0.0})
  assert said.endswith(
    "forgets' returned None, or an empty list, for each of 1 completions, which count as not "
    "solved; "
    "is a `return` missing?"
  )
  found.reward.score(example._replace(answer="some"), completion)
  assert not found.warnings({"accuracy": 0.0})


def test_reward_models_judge_batches_that_divide_over_the_learner_s_mesh(config):
  config.mesh.fsdp, config.sampler.tensor, config.eval.batch = 8, 4, 12
  model = build.model(make(config))
  experiment = make(config)
  assert evaluator.Evaluator(experiment, model, models=lambda: ())
  judged = dataclasses.replace(experiment, reward_models=("a model",))
  with pytest.raises(SettingError, match="^eval.batch=12: use a multiple of 8"):
    evaluator.Evaluator(judged, model)


def test_without_problems_no_batch_has_to_divide(config):
  config.mesh.fsdp, config.mesh.group, config.eval.batch, config.eval.samples = 4, 2, 7, 3
  config.eval.problems = 0
  evaluator.Evaluator(make(config), build.model(make(config)))
  config.eval.problems = 2
  with pytest.raises(SettingError, match="^eval.batch=7: use a multiple of 4"):
    evaluator.Evaluator(make(config), build.model(make(config)))


@pytest.mark.slow
@pytest.mark.long
def test_several_shards_of_samples_leave_one_greedy_row_of_a_problem():
  """Keeps the rows of several paths in one group for each problem, with both kinds."""
  changes = {"mesh.fsdp": 4, "mesh.group": 2, "eval.problems": 5, "eval.batch": 4}
  experiment = make(tiny_runs.config(changes | {"eval.samples": 4}))
  model = build.model(experiment)
  of_path = [
    evaluate_command.evaluate_model(experiment, path, None, model).samples for path in ("a", "b")
  ]
  asked = [row["question"] for row in of_path[0] if row["kind"] == "greedy"]
  assert len(asked) == len(set(asked)) == 5 and len(of_path[0]) == 5 + 5 * 4
  groups: dict[int, list[str]] = {}
  for row in evaluate_command.of_all_paths(of_path):
    groups.setdefault(row["group"], []).append(row["question"])
  assert [(len(rows), len(set(rows))) for rows in groups.values()] == [(10, 1)] * 5


def test_a_tilde_is_expanded_in_every_path(monkeypatch, capsys):
  def check(config, paths, *_):
    raise SettingError(f"seen: {paths}")

  monkeypatch.setenv("HOME", "/home/me")
  monkeypatch.setattr(evaluate_command, "check", check)
  values = {"path": ["A,~/B", "~/C"], "config": None, "step": None, "out": None}
  monkeypatch.setattr(flags, "FLAGS", type("Values", (), values))
  with pytest.raises(SystemExit):
    evaluate_command.main([])
  assert "seen: ['A', '/home/me/B', '/home/me/C']" in capsys.readouterr().err


def leaves(example: Example, completion):
  raise SystemExit(0)


def forgets(example: Example, completion):
  return 0.0 if example.answer == "some" else None


def hangs(example: Example, completion):
  while True:
    pass


def talks(example: Example, completion):
  return "very good"
