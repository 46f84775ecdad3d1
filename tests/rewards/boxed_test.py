"""Boxed answers against a table made by hand, and against what is built to hang, to fill the memory
or to run code.
"""

import resource
import subprocess
import sys
import time

import boxed_answers
import hostile_answers
import pytest
from conftest import ROOT, environment

from grpo_jax.errors import SettingError
from grpo_jax.rewards import boxed, combine
from grpo_jax.sandbox import worker
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example


def example(answer):
  return Example("", "", answer, {})


def completion(text, ended=STOPPED):
  return Completion(text, [1], ended, [])


@pytest.fixture(scope="module")
def table():
  """The pairs of the table, compared all together."""
  boxed.check_arguments()
  boxed.score_ahead(
    [(example(answer), completion(text)) for answer, text, _ in boxed_answers.PAIRS]
  )


@pytest.mark.parametrize("answer, text, right", boxed_answers.PAIRS)
def test_boxed_correct(answer, text, right, table):
  assert boxed.boxed_correct(example(answer), completion(text)) == right


def test_the_table_is_large_and_half_of_it_are_traps():
  pairs = boxed_answers.PAIRS
  assert len(set(pairs)) == len(pairs) >= 200
  assert 0.4 < sum(right for *_, right in pairs) / len(pairs) < 0.6


def test_every_right_answer_of_the_table_is_right_as_it_stands(table):
  for answer, _, _ in boxed_answers.PAIRS:
    assert (
      boxed.boxed_correct(
        example(answer), completion(answer if "boxed" in answer else f"\\boxed{{{answer}}}")
      )
      == 1
    )


@pytest.mark.parametrize(
  "text, found",
  [
    ("\\boxed{5}", "5"),
    ("\\boxed{\\frac{1}{2}} and {3}", "\\frac{1}{2}"),
    ("\\boxed{1}\\boxed{2}", "2"),
    ("\\boxed{1+\\boxed{2}}", "1+\\boxed{2}"),
    ("{\\boxed{1}}", "1"),
    ("}\\boxed{1}", "1"),
    ("\\boxed{\\{1\\}}", "\\{1\\}"),
    ("\\boxed{1", None),
    ("\\boxed{1}\\boxed{2", None),
    ("\\boxed1", None),
    ("", None),
  ],
)
def test_last_box(text, found):
  assert boxed.last_box(text) == found


def test_a_box_is_looked_for_at_the_end_of_a_text():
  words = "so " * (boxed.SEARCHED // 3 - 10)
  assert boxed.last_box(f"{{ \\boxed{{7}} {words}") == "7"
  assert boxed.last_box(f"\\boxed{{7}} {words} and therefore I am done") is None
  assert boxed.last_box("{" * 10**6 + "\\boxed{7}") == "7"


def test_a_box_that_was_closed_before_the_cut_counts():
  assert boxed.boxed_correct(example("7"), completion("\\boxed{7} so", TRUNCATED)) == 1.0
  assert boxed.boxed_correct(example("7"), completion("\\boxed{7", TRUNCATED)) == 0.0


def test_the_example_needs_an_answer():
  for answer in ("", " ", "9" * 400, "\\boxed{"):
    with pytest.raises(ValueError, match="cannot be read"):
      boxed.boxed_correct(example(answer), completion("\\boxed{7}"))


def test_equal_answers_vote_together():
  alike = [
    ["0.5", "\\frac12", "1/2", "x=\\dfrac{1}{2}"],
    ["1,2", "\\{2,1\\}"],
    ["2\\sqrt3", "2\\sqrt{3}"],
  ]
  alike += [["5\\text{ cm}", "5"], ["(1, 2)", "\\left(1,2\\right)"], ["\\text{Monday}", "monday"]]
  votes = [{boxed.answer_of(completion(f"\\boxed{{{text}}}")) for text in texts} for texts in alike]
  assert [len(each) for each in votes] == [1] * len(alike) and len(set.union(*votes)) == len(alike)
  assert (
    boxed.answer_of(completion("5")) is None and boxed.answer_of(completion("\\boxed{5")) is None
  )


def test_what_is_plain_needs_no_process(monkeypatch):
  monkeypatch.setattr(boxed, "_compare", lambda wanted: pytest.fail(f"asked for {wanted}"))
  for text, right in (
    ("0.5", 1),
    ("\\dfrac12", 1),
    ("0.51", 0),
    ("(1,2)", 0),
    ("\\text{no}", 0),
    ("9" * 400, 0),
  ):
    assert boxed.boxed_correct(example("\\frac12"), completion(f"\\boxed{{{text}}}")) == right


def test_without_math_verify_the_setting_is_refused(monkeypatch):
  missing = worker.Pool([worker.Process("grpo_jax.rewards.missing")])
  monkeypatch.setattr(boxed, "_pool", lambda: missing)
  with pytest.raises(
    SettingError, match=r"boxed.boxed_correct needs math-verify.*pip install -e '\.\[math\]'"
  ):
    boxed.check_arguments()


def test_jax_is_not_imported_by_what_compares():
  code = (
    "import sys\nimport grpo_jax.rewards.algebra\nassert 'jax' not in sys.modules and 'sympy' not "
    "in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(1), check=True)


@pytest.mark.slow
def test_hostile_answers_delay_nobody(table, tmp_path):
  """Fifty in a batch of five hundred: score 0, those that were stopped counted, nothing run, and 10
  s on two cores.

  With -s it prints the seconds. Those of computing are judged: on a machine that does nothing else,
  two processes on two cores are done in half of them.
  """
  mark = tmp_path / "executed"
  hostile = hostile_answers.texts(str(mark))
  pairs = boxed_answers.PAIRS
  assert len(hostile) >= 50
  fair = [
    (example(answer), completion(text)) for answer, text, _ in (pairs * 3)[: 500 - len(hostile)]
  ]
  batch = [*fair, *((example("2\\sqrt{x+1}"), completion(text)) for text in hostile)]
  # 7 divides nothing of 500: the hostile ones lie everywhere
  batch = [batch[i * 7 % 500] for i in range(500)]
  boxed._known().clear()
  for process in boxed._pool().processes:
    process.stop()
  boxed.check_arguments()
  before, start, own = (
    resource.getrusage(resource.RUSAGE_CHILDREN),
    time.perf_counter(),
    time.process_time(),
  )
  examples, groups = [e for e, _ in batch], [[c] for _, c in batch]
  combine.ahead([boxed.score_ahead], examples, groups)
  scores = combine.score([("boxed", boxed.boxed_correct, 1.0)], examples, groups, 1, deadline=10.0)
  seconds, own = time.perf_counter() - start, time.process_time() - own
  for process in boxed._pool().processes:
    process.stop()
  after = resource.getrusage(resource.RUSAGE_CHILDREN)  # with the start of the processes
  theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  print(
    f"{len(hostile)} hostile of 500: {seconds:.1f} s, computing {own:.1f} s here and {theirs:.1f} "
    "s in two processes"
  )
  print(f"{len(scores.faults)} faults")
  assert own + theirs / boxed.WORKERS < 10.0
  of_hostile = {p for p, (_, c) in enumerate(batch) if c.text in hostile}
  assert {fault.prompt for fault in scores.faults} <= of_hostile and len(scores.faults) >= 10
  assert not scores.rewards[sorted(of_hostile)].any() and not mark.exists()
  wanted = {(answer, text): float(right) for answer, text, right in pairs}
  for p, (e, c) in enumerate(batch):
    if p not in of_hostile:
      assert scores.rewards[p, 0, 0] == wanted[e.answer, c.text], (e.answer, c.text)
