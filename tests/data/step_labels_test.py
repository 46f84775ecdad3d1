"""Step labels from jsonl, in lines written by hand as PRM800K and Math-Shepherd have them."""

import json

import pytest

from grpo_jax.data import step_labels
from grpo_jax.errors import DataError, SettingError


def step(*ratings, chosen=0, human=None):
  offered = [
    {"text": f"{rating} {i}", "rating": rating, "flagged": None} for i, rating in enumerate(ratings)
  ]
  return {
    "completions": offered,
    "human_completion": human and {"text": human},
    "chosen_completion": chosen,
  }


def prm800k(*steps, reason="found_error"):
  return {
    "question": {"problem": "What?"},
    "label": {"steps": list(steps), "finish_reason": reason},
  }


def solutions(record):
  found = step_labels.parse_line(record, "f, line 1")
  assert all(each.question == "What?" for each in found)
  return [("".join(each.steps) + "." * each.complete, each.labels) for each in found]


def test_prm800k_with_one_completion_a_step():
  """Neutral counts as right; a solution ends with its first wrong step, which nobody chose."""
  record = prm800k(step(1), step(0), step(-1, chosen=None))
  assert solutions(record) == [("1 0\n0 0\n-1 0\n", [1.0, 1.0, 0.0])]


def test_prm800k_with_completions_that_were_not_chosen():
  """Each ends a solution of its own, in which the steps before it are not labelled a second time.

  A full stop shows a solution that is complete.
  """
  record = prm800k(
    step(1),
    step(-1, 1, 0, chosen=1),
    step(-1, -1, chosen=None, human="by hand"),
    step(None),
    step(1),
  )
  record["label"]["finish_reason"] = "solution"
  assert solutions(record) == [
    ("1 0\n1 1\nby hand\nNone 0\n1 0.", [1.0, 1.0, 1.0, None, 1.0]),
    ("1 0\n-1 0\n", [None, 0.0]),
    ("1 0\n0 2\n", [None, 1.0]),
    ("1 0\n1 1\n-1 0\n", [None, None, 0.0]),
    ("1 0\n1 1\n-1 1\n", [None, None, 0.0]),
  ]
  undecided = prm800k(step(1), step(-1, 0, chosen=None))
  assert solutions(undecided) == [("1 0\n-1 0\n", [1.0, 0.0]), ("1 0\n0 1\n", [None, 1.0])]


def test_prm800k_without_a_rating_gives_nothing():
  assert solutions(prm800k()) == solutions(prm800k(step(None))) == []
  nothing = {"completions": None, "human_completion": None, "chosen_completion": None}
  assert solutions(prm800k(step(1), nothing)) == [("1 0\n", [1.0])]


def test_math_shepherd():
  """Plus and minus signs of the text are no labels."""
  record = {
    "input": "What? Step 1: 3 + 4 = 7 ки\nStep 2: 7 - 1 = 5 ки\nStep 3: The answer is: -5 ки",
    "label": "What? Step 1: 3 + 4 = 7 +\nStep 2: 7 - 1 = 5 -\nStep 3: The answer is: -5 -",
    "task": "GSM8K",
  }
  assert solutions(record) == [
    ("Step 1: 3 + 4 = 7\nStep 2: 7 - 1 = 5\nStep 3: The answer is: -5.", [1.0, 0.0, 0.0])
  ]
  unfinished = {"input": "What? Step 1: a ки\nStep 2: b", "label": "What? Step 1: a +\nStep 2: b"}
  assert solutions(unfinished) == [("Step 1: a\nStep 2: b\n", [1.0, None])]
  assert solutions({"input": "What? a ки", "label": "What? a +"}) == []


@pytest.mark.parametrize(
  "record, message",
  [
    ({"question": "What?"}, 'line 1: has neither "question" and "label" as PRM800K nor'),
    (prm800k(step(2)), "line 1: a rating should be -1, 0, 1 or null, and is 2"),
    (prm800k(step(1, chosen=3)), "line 1: is not in the layout of PRM800K: IndexError"),
    (
      prm800k({"completions": [{"rating": 1}]}),
      "line 1: is not in the layout of PRM800K: KeyError",
    ),
    ({"question": {}, "label": {"steps": []}}, 'line 1: no field "problem"'),
    (
      {"input": "What? Step 1: a ки", "label": "What? Step 1: a !"},
      "with . or - for each ки, and is not at step 1",
    ),
    ({"input": "What? Step 1: a ки", "label": "What? Step 1: bb +"}, "and is not at step 1"),
  ],
)
def test_other_lines_are_refused(record, message):
  with pytest.raises(DataError, match=message):
    step_labels.parse_line(record, "f, line 1")


def test_a_file_that_is_not_there_is_said_of_its_setting(tmp_path):
  with pytest.raises(SettingError, match="^offline.steps = .*no such file"):
    step_labels.read(str(tmp_path / "none.jsonl"))


def test_a_file(tmp_path):
  file = tmp_path / "train.jsonl"
  lines = [
    prm800k(step(1)),
    {"input": "No step ки", "label": "No step +"},
    prm800k(step(-1, chosen=None)),
  ]
  file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
  found, without = step_labels.read(str(tmp_path))
  assert [each.labels for each in found] == [[1.0], [0.0]] and without == 1
  file.write_text(json.dumps(lines[1]), encoding="utf-8")
  with pytest.raises(DataError, match="none of its 1 lines has a labelled step"):
    step_labels.read(str(file))
  with pytest.raises(SettingError, match="offline.steps='': give a jsonl file"):
    step_labels.read("")
