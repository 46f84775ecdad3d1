"""Whatever is given as a setting, as a line of data or as a completion, nothing but GrpoError is
ever raised.
"""

import functools
import json
import math
import time

import bad_settings_test
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.config import kinds
from grpo_jax.data import gsm8k, jsonl
from grpo_jax.errors import GrpoError
from grpo_jax.rewards import choice, combine, format, length, steps
from grpo_jax.rewards import math as math_reward
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example

FEW = settings(max_examples=100, derandomize=True, deadline=None)
NAMES = sorted(arguments.names_of(bad_settings_test.CONFIGS["grpo"]))

TEXTS = st.text(
  st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\0\n{}()./:"), max_size=30
)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
  ATOMS, lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.lists(inner, max_size=4)
)


@FEW
@given(st.sampled_from(NAMES), VALUES)
@example("rewards.functions", (1,))
@example("mesh.rules", (1, 2))
@example("objective.name", "../x")
@example("data.arithmetic", 3)
@example("objective.reward_weights", ("a",))
@example("data.mixture", (("arithmetic", "", float("nan")),))
def test_any_value_of_any_setting(name, value):
  try:
    c = bad_settings_test.changed(name, value)
  except (
    TypeError,
    ValueError,
    OverflowError,
  ):  # ml_collections refuses it, where the config file says so
    assume(False)
  told(bad_settings_test.before_weights, c)


@FEW
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=2, max_size=4))
def test_any_values_of_several_settings(changes):
  name, value = changes.popitem()
  try:
    c = bad_settings_test.changed(name, value, also=changes)
  except (TypeError, ValueError, OverflowError, AttributeError):
    assume(False)
  told(bad_settings_test.before_weights, c)


def told(function, *args):
  """Calls a function that may refuse what it is given, in one line and by no other error; returns
  what it returned.
  """
  try:
    return function(*args)
  except GrpoError as error:
    assert str(error)
    return None


# -- data

KEYS = st.sampled_from(["question", "answer", "options", "more"]) | TEXTS
JSON = st.recursive(
  ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)
NAMED = ConfigDict({"question": "question", "answer": "answer", "solution": "", "choices": ""})
CHOICES = ConfigDict({**NAMED, "choices": "options"})
ROWS = st.fixed_dictionaries(
  {"question": JSON, "answer": JSON, "options": JSON | st.lists(TEXTS, max_size=4)}
)
LINES = (ROWS | JSON).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=40)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
  return tmp_path_factory.mktemp("data") / "train.jsonl"


@FEW
@given(lines=st.lists(LINES, max_size=3))
@example(lines=[b'{"question": "\\ud800", "answer": "1"}'])
@example(lines=[b'{"question": "a", "answer": ' + b"1" * 5000 + b"}"])
@example(lines=[b"[" * 100_000])
@example(lines=[b'{"question": "a", "answer": true, "options": ["a", "b"]}'])
@example(lines=[b'{"question": "a", "answer": NaN, "options": [1e999, -0.0]}'])
def test_any_line_of_data(file, lines):
  file.write_bytes(b"\n".join(lines))
  sources = (
    functools.partial(jsonl.source, "train", str(file), NAMED),
    functools.partial(jsonl.source, "train", str(file), CHOICES),
    functools.partial(gsm8k.source, "train", str(file.parent), ConfigDict({"annotations": False})),
  )
  for source in sources:
    for made in told(source) or ():
      assert all(
        kinds.is_text(text.replace("\0", ""))
        for text in (made.question, made.solution, made.answer)
      )


# -- rewards

VERIFIERS = {
  "math.answer_correct": math_reward.answer_correct,
  "math.well_formed": math_reward.well_formed,
  "choice.choice_correct": choice.choice_correct,
  "format.worked": format.worked,
  "format.think_tags": format.think_tags,
  "length.overlong": functools.partial(length.overlong, max_length=20, buffer=5),
  "steps.steps_correct": steps.steps_correct,
}
PIECES = [
  "####",
  "#### ",
  "\n",
  "7",
  "1,000",
  "3 + 4 = 7",
  "= ",
  "=",
  " ",
  "$",
  "-",
  ".",
  "B",
  "(B)",
  "<think>",
  "</think>",
]
PIECES += [
  "<answer>",
  "</answer>",
  "\0",
  "\ud800",
  "\u0661",
  "\u2212",
  "9" * 30,
  "=" * 20,
  "\r",
  "\u2028",
  "e",
  "\u00b2",
]
COMPLETIONS = st.lists(st.sampled_from(PIECES) | TEXTS, max_size=12).map("".join)


def score(name: str, text: str, ended: int) -> None:
  """Scores a completion and sees that its reward is finite and no fault."""
  answer = "B" if name.startswith("choice") else "7"
  question = Example("3 + 4?", f"3 + 4 = 7\n#### {answer}", answer, {"results": [7]})
  lines = [line for line in text.split("\n") if line.strip()] or [""]
  completion = Completion(text, [1] * (len(lines) + 1), ended, list(range(len(lines))))
  scores = combine.score(
    [(name, VERIFIERS[name], 1.0)], [question], [[completion]], len(completion.tokens)
  )
  assert not scores.faults and np.isfinite(scores.rewards).all() and scores.given.any()
  assert math.isfinite(scores.components[0, 0, 0])


@pytest.mark.parametrize("name", VERIFIERS)
@FEW
@given(text=COMPLETIONS, ended=st.sampled_from([STOPPED, TRUNCATED]))
@example(text="", ended=STOPPED)
@example(text="#### \u0661", ended=STOPPED)
@example(text="1 / 0 = 7\n#### 7", ended=STOPPED)
def test_any_completion_has_a_reward(name, text, ended):
  score(name, text, ended)


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_time_of_a_reward_grows_with_the_text_alone(name):
  """100,000 characters of each piece, and of pieces in turn, take seconds and not minutes."""
  turns = [first + second for first in PIECES[:14] for second in PIECES[:14]]
  for piece in [*PIECES, *turns]:
    text = (piece * (100_000 // len(piece)))[:100_000]
    start = time.process_time()
    score(name, text, STOPPED)
    assert time.process_time() - start < 5, (name, piece)
