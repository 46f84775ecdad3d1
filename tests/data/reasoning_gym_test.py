"""reasoning-gym as a data set and as a reward: splits, levels, scorers, and answers that must not
be evaluated.
"""

import importlib.util
import json
import sys

import pytest

from grpo_jax.data import reasoning_gym as data
from grpo_jax.errors import SettingError

# Skipped where the extra is not installed, but for what needs no package.
needs_gym = pytest.mark.skipif(
  importlib.util.find_spec("reasoning_gym") is None, reason="extra gym"
)


def problems(split="train", **changes):
  c = data.settings()
  c.update(changes)
  return data.source(split, "", c)


@needs_gym
def test_no_question_is_in_two_splits_for_any_seeds():
  small = {"level": 0, "size": 300}
  train = {e.question for seed in (0, 1) for e in problems(**small, seed=seed)}
  held_out = {
    e.question for split in ("test", "validation") for e in problems(split, **small, seed=5)
  }
  assert len(train) > 20 and len(held_out) > 10 and not train & held_out


@needs_gym
def test_problems_are_the_same_each_time_and_differ_by_seed():
  a, b, c = problems(), problems(), problems(seed=10**6)
  assert [a[i].question for i in (7, 3)] == [b[i].question for i in (7, 3)]
  assert a[3].question != c[3].question and len(a) == 10_000
  with pytest.raises(IndexError):
    problems(size=5)[5]


@needs_gym
def test_levels_and_the_tasks_own_settings():
  terms = {
    level: max(e.meta["entry"]["metadata"]["num_terms"] for e in problems(level=level, size=60))
    for level in (0, 3)
  }
  assert terms == {0: 2, 3: 5}
  more = problems(level=0, size=60, settings={"max_terms": 4})
  assert {e.meta["entry"]["metadata"]["num_terms"] for e in more} == {2, 3, 4}


@needs_gym
@pytest.mark.parametrize(
  "changes, message",
  [
    ({"task": "chain_sums"}, "the nearest are chain_sum"),
    ({"level": 11}, "from 0 to 10"),
    ({"level": 0, "task": "list_functions"}, "no curriculum"),
    ({"settings": {"terms": 3}}, "settings.terms: chain_sum has no such setting; use min_terms"),
    ({"settings": {"size": 3}}, "settings.size"),
    ({"settings": {"min_terms": 9}}, "refuses level=-1"),
    ({"answer_in": "box"}, "tags or line"),
  ],
)
def test_bad_settings(changes, message):
  with pytest.raises(SettingError, match=message) as error:
    problems(**changes)
  assert "\n" not in str(error.value)


def test_a_task_of_too_few_questions_is_refused():
  of = data.split_of("Why?")
  other = next(split for split in data.SPLITS if split != of)
  same = [{"question": "Why?", "answer": None}] * 4
  assert data.Problems(lambda number: same, "why", of, 4, "tags")[3].answer == ""
  with pytest.raises(SettingError, match="too few questions"):
    data.Problems(lambda number: same, "why", other, 4, "tags")[0]


def test_a_problem_that_the_task_fails_to_make_is_passed_over():
  class Failing:
    def __getitem__(self, index):
      raise ValueError("no valid expression after 100 attempts")

  whole = [{"question": "Why?", "answer": None}] * 4
  of = data.split_of("Why?")
  found = data.Problems(lambda number: whole if number else Failing(), "why", of, 4, "tags")
  assert found[2].question == "Why?"
  with pytest.raises(
    SettingError, match="some could not be made .ValueError: no valid expression after 100 attempts"
  ):
    data.Problems(lambda number: Failing(), "why", of, 4, "tags")[0]


def test_without_the_package_there_is_a_line_that_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(SettingError, match=r"pip install -e '\.\[gym\]'"):
    problems()


@needs_gym
@pytest.mark.slow
@pytest.mark.long
def test_the_experiment_teaches_the_form_and_then_learns_from_scores(tmp_path, program):
  """Two steps of each run, by one command; pass@k is counted by the task's scorer."""
  few = ("steps=2", "data.prompts=8", "eval.problems=8", "eval.batch=8", "eval.samples=2")
  settings = [f"--config.{run}{setting}" for run in ("", "first.") for setting in few]
  done = program(
    "experiments.run",
    "--config=experiments/reasoning_gym.py",
    f"--workdir={tmp_path}/gym",
    "--config.sampler.group=4",
    *settings,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr
  lines = [
    json.loads(line) for line in (tmp_path / "gym" / "metrics.jsonl").read_text().splitlines()
  ]
  assert "eval/pass@2" in lines[-1] and any("reward/solved" in line for line in lines)
