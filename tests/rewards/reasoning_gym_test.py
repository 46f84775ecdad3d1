"""Answers to tasks of reasoning-gym."""

import time

from reasoning_gym_test import needs_gym, problems

from grpo_jax.rewards.reasoning_gym import given_answer, harmless, solved
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example


def written(text, ended=STOPPED):
  return Completion(text, [1], ended, [0])


def example(score, task="chain_sum", answer_in="tags"):
  return Example("?", "", "", {"task": task, "score": score, "answer_in": answer_in})


@needs_gym
def test_the_own_scorer_gives_a_solution_1_and_others_less():
  for task in ("chain_sum", "countdown", "sudoku", "knights_knaves"):
    for each in (problems("test", task=task, size=20)[i] for i in range(2)):
      assert solved(each, written(each.solution)) == 1.0
      assert solved(each, written("<answer>12 and more</answer>")) < 1.0
      assert solved(each, written(each.answer)) == 0.0  # without its tags


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


def test_the_time_to_refuse_an_answer_grows_with_it():
  """Refuses one that is right but for its last character, and a number of more than 40 digits."""
  for task, answer in (
    ("countdown", "1" * 900 + "x"),
    ("polynomial_multiplication", "+".join(["98765*x**5"] * 90) + "."),
    ("polynomial_multiplication", "(" * 900 + "!"),
    ("n_queens", "1 " * 450 + "!"),
    ("countdown", "1" * 41),
  ):
    start = time.perf_counter()
    assert not harmless(task, answer)
    assert time.perf_counter() - start < 1.0, answer[:20]
  assert harmless("countdown", "1" * 40)
  assert harmless("polynomial_multiplication", "+".join(["98765*x**5"] * 90))


def test_powers_of_powers_are_bounded():
  for answer, want in (
    ("(x + 1)**2*(x + 2)**3", True),
    ("(x + 1)**99", True),
    ("((999999999999)**10)**10", True),
    ("((999999999999)**99)**99", False),
    ("(((x)**9)**9)**(9)", False),
  ):
    assert harmless("simple_integration", answer) == want, answer


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
