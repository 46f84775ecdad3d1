"""reasoning-gym as a data set and as a reward: splits, levels, scorers, and answers that must not
be evaluated.
"""

import importlib.util
import json
import sys

import pytest

from grpo_jax.data import reasoning_gym as data
from grpo_jax.errors import SettingError
from grpo_jax.rewards.reasoning_gym import given_answer, harmless, solved
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example

# Skipped where the extra is not installed, but for what needs no package.
needs_gym = pytest.mark.skipif(
  importlib.util.find_spec("reasoning_gym") is None, reason="extra gym"
)


def problems(split="train", **changes):
  c = data.settings()
  c.update(changes)
  return data.source(split, "", c)


def written(text, ended=STOPPED):
  return Completion(text, [1], ended, [0])


def example(score, task="chain_sum", answer_in="tags"):
  return Example("?", "", "", {"task": task, "score": score, "answer_in": answer_in})


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
def test_the_own_scorer_gives_a_solution_1_and_others_less():
  for task in ("chain_sum", "countdown", "sudoku", "knights_knaves"):
    for each in (problems("test", task=task, size=20)[i] for i in range(2)):
      assert solved(each, written(each.solution)) == 1.0
      assert solved(each, written("<answer>12 and more</answer>")) < 1.0
      assert solved(each, written(each.answer)) == 0.0  # without its tags


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


def test_without_the_package_there_is_a_line_that_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(SettingError, match=r"pip install -e '\.\[gym\]'"):
    problems()


def test_the_answer_of_a_completion():
  assert (
    given_answer(written("so <answer>3</answer> no <answer>\n4 5 </answer> end"), "tags") == "4 5"
  )
  assert given_answer(written("<answer>3", TRUNCATED), "tags") is None
  assert given_answer(written("</answer> <answer>"), "tags") is None
  assert given_answer(written("<answer>3</answer>", TRUNCATED), "tags") == "3"
  assert given_answer(written("2 + 2\n 4 \n\n"), "line") == "4"
  # 4 may be the beginning of 42
  assert given_answer(written("2 + 2\n 4", TRUNCATED), "line") is None


def test_scores_are_in_0_to_1_and_a_scorer_that_cannot_read_an_answer_gives_0():
  text = written("<answer>4</answer>")
  assert solved(example(lambda answer: 1.5), text) == 1.0
  assert solved(example(lambda answer: -1), text) == 0.0
  assert solved(example(lambda answer: float(answer == "4") / 2), text) == 0.5
  assert solved(example(lambda answer: 1 / 0), text) == 0.0


def test_nothing_that_a_model_wrote_is_evaluated():
  hostile = [
    "__import__('os').system('id')",
    "x.__class__",
    "9**9**9**9",
    "(9**9)**99",
    "Symbol('x')",
    "1 .real",
    "x**9**9",
  ]
  for task in (
    "countdown",
    "puzzle24",
    "n_queens",
    "simple_integration",
    "polynomial_multiplication",
    "spiral_matrix",
  ):
    for answer in hostile:
      assert not harmless(task, answer), (task, answer)
  assert not harmless("simple_integration", "((((x)**99)**99)**99)**99")
  assert not harmless("coin_flip", "1e999999999")
  assert (
    harmless("countdown", "(12 + 3) * 4 / 2")
    and harmless("coin_flip", "0.375")
    and harmless("chain_sum", "x.y")
  )
  assert harmless("polynomial_multiplication", "8*x**3 - 2*x*y**2 + 15") and harmless(
    "spiral_matrix", "[1, 2]"
  )
  assert harmless("simple_integration", "2*x**2/3 + exp(x)*sin(x)**2 + C")


@needs_gym
@pytest.mark.slow
@pytest.mark.long
def test_the_experiment_teaches_the_form_and_then_learns_from_scores(tmp_path, program):
  """Two steps of each stage, the second from the export of the first; pass@k is counted by the
  task's scorer.
  """
  few = (
    "steps=2",
    "data.prompts=8",
    "sampler.group=4",
    "eval.problems=8",
    "eval.batch=8",
    "eval.samples=2",
  )
  for name, arg, own in (
    ("sft", "stage=sft", "sampler.group=1"),
    ("gym", f"init_from={tmp_path}/sft/export", "seed=0"),
  ):
    settings = [f"--config.{setting}" for setting in (*few, own)]
    config = f"--config=experiments/reasoning_gym.py:{arg}"
    done = program(
      "experiments.run", config, f"--workdir={tmp_path}/{name}", *settings, timeout=600
    )
    assert done.returncode == 0, done.stderr
  lines = [
    json.loads(line) for line in (tmp_path / "gym" / "metrics.jsonl").read_text().splitlines()
  ]
  assert "eval/pass@2" in lines[-1] and any("reward/solved" in line for line in lines)
