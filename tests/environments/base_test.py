"""Whatever an environment returns is checked; its fault is told in one line."""

import decimal
import fractions
import json
from typing import Any

import numpy as np
import pytest

from grpo_jax.environments import base
from grpo_jax.environments.base import LONGEST
from grpo_jax.types import STOPPED, Completion, Example, Turn

EXAMPLE = Example("How many?", "1 + 1 = 2", "2", {"index": 3})
COMPLETION = Completion("2", [7, 8], STOPPED, [1])


def begin(state: Any) -> Any:
  return base.begin(lambda example, key: state, EXAMPLE, 0)


def answer(*turn: Any, state: Any = None) -> Turn:
  """Returns the checked answer of an environment that returns Turn(*turn)."""
  return base.answer(lambda *_: Turn(*turn), state, COMPLETION)


def test_functions_are_called_with_what_their_page_says():
  seen = []

  def reset(example, key):
    seen.append((example, key))
    return {"left": 2}

  def step(state, completion):
    seen.append((state, completion))
    return Turn({"left": 1}, "go on", 0.5)

  state = base.begin(reset, EXAMPLE, 5)
  assert state == {"left": 2}
  assert base.answer(step, state, COMPLETION) == Turn({"left": 1}, "go on", 0.5)
  assert seen == [(EXAMPLE, 5), ({"left": 2}, COMPLETION)]


def test_an_answer_without_observation_and_reward():
  assert answer({}) == Turn({}, None, None)
  assert answer(None) == Turn(None, None, None)


@pytest.mark.parametrize("wrong", [None, "go on", ({}, "go on", 1.0), {"state": {}}, 1, Turn])
def test_an_answer_that_is_no_turn(wrong):
  with pytest.raises(TypeError, match=r"^returned .*; use grpo_jax.types.Turn\(state, observation"):
    base.answer(lambda *_: wrong, {}, COMPLETION)


@pytest.mark.parametrize("wrong", [1, 1.5, True, b"text", ["text"], {"text": 1}, object()])
def test_an_observation_that_is_no_text(wrong):
  with pytest.raises(TypeError, match="^returned the observation .*, which is no text$"):
    answer({}, wrong)


def test_observations_that_are_empty_or_huge_or_half():
  with pytest.raises(ValueError, match="^returned an empty observation; use None to end"):
    answer({}, "")
  assert answer({}, "x" * LONGEST).observation == "x" * LONGEST
  with pytest.raises(ValueError, match="^returned an observation of more than 100,000 characters$"):
    answer({}, "x" * (LONGEST + 1))
  with pytest.raises(ValueError, match=r"^returned the observation 'a\\ud800': .*surrogates"):
    answer({}, "a\ud800")  # no tokenizer takes it
  for text in (" ", "\n", "\0", "naïve — €7 \U0001f600"):
    assert answer({}, text).observation == text


# -- states


def cyclic() -> list:
  found: list = []
  found.append(found)
  return found


def deep() -> list:
  found: list = []
  for _ in range(100_000):
    found = [found]
  return found


NO_JSON = (
  object(),
  {1, 2},
  b"x",
  np.int64(3),
  np.zeros(2),
  {(1, 2): 3},
  1j,
  len,
  EXAMPLE.__class__,
)


@pytest.mark.parametrize("state", [*NO_JSON, {"deep": [{"er": {1}}]}, cyclic(), deep()], ids=type)
def test_a_state_that_is_no_json(state):
  with pytest.raises(TypeError, match="^returned a state that is no JSON: "):
    begin(state)
  with pytest.raises(TypeError, match="^returned a state that is no JSON: "):
    answer(state, "go on")


def test_a_state_that_is_huge():
  most = "x" * (LONGEST - 2)  # two quotation marks
  assert begin(most) == most
  for state in (most + "x", [1] * LONGEST, {"text": ["é" * (LONGEST // 2)]}):
    for call in (begin, answer):
      with pytest.raises(
        ValueError, match="^returned a state of more than 100,000 characters of J"
      ):
        call(state)


@pytest.mark.parametrize("state", [None, 1, 0.5, True, "text", [], {}, {"a": [1, {"b": None}]}])
def test_states_may_be_any_json(state):
  assert begin(state) == state and type(begin(state)) is type(state)
  assert answer(state, "go on").state == state


def test_a_state_is_a_copy():
  """Keeps states, or shares a part of them, as an environment may; none is changed by it."""
  shared = {"guesses": []}
  state = begin(shared)
  turn = answer(shared, "go on")
  shared["guesses"].append(1)
  assert state == turn.state == {"guesses": []}
  assert begin((1, (2, 3))) == [1, [2, 3]]


# -- rewards


@pytest.mark.parametrize(
  ("reward", "want"),
  [
    (None, None),
    (1, 1.0),
    (-0.25, -0.25),
    (True, 1.0),
    (False, 0.0),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.int64(-2), -2.0),
    (np.bool_(True), 1.0),
    (np.array(1.5), 1.5),
    (fractions.Fraction(1, 2), 0.5),
    (decimal.Decimal("0.5"), 0.5),
    (1e12, 1e12),
  ],
)
def test_rewards_are_floats(reward, want):
  found = answer({}, None, reward).reward
  assert found == want and type(found) is type(want)


@pytest.mark.parametrize(
  "reward", ["1", "", b"1", bytearray(b"1"), np.str_("1"), [1.0], (), {}, {"a": 1}, 1j, len]
  + [np.array([1.0, 2.0]), object()],
  ids=lambda x: f"{x!r:.20}",
)  # fmt: skip
def test_a_reward_that_is_no_number(reward):
  with pytest.raises(TypeError, match="^returned the reward .*, which is no number$"):
    answer({}, None, reward)


@pytest.mark.parametrize(
  "reward",
  [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("inf"), 1.1e12, -1e300]
  + [10**13, 10**400, decimal.Decimal("nan"), decimal.Decimal("1e40")],
  ids=lambda x: f"{x!r:.20}",
)
def test_a_reward_that_is_not_finite(reward):
  with pytest.raises(ValueError, match="^returned the reward .*, which is no finite number$"):
    answer({}, None, reward)


def test_what_is_raised_is_passed_on():
  def step(state, completion):
    raise KeyError("no such tool")

  with pytest.raises(KeyError, match="no such tool"):
    base.answer(step, {}, COMPLETION)
  with pytest.raises(KeyError, match="no such tool"):
    base.begin(step, EXAMPLE, 0)


def test_an_error_that_is_no_text_is_told_by_its_kind():
  class Odd(Exception):
    def __str__(self):
      raise RuntimeError

  def step(state, completion):
    raise Odd

  found = base.respond(base.Functions(step, step), {"state": {}, "completion": [*COMPLETION]})
  assert found == {"error": "step: Odd: "}


# -- the state of an environment without `reset`


def test_the_first_state_is_the_example():
  assert base.first_state(EXAMPLE, 7) == {
    "question": "How many?",
    "solution": "1 + 1 = 2",
    "answer": "2",
    "meta": {"index": 3},
  }


@pytest.mark.parametrize(
  ("meta", "want"),
  [
    ({}, {}),
    ({"a": [1, {"b": (2, None)}], "c": True}, {"a": [1, {"b": [2, None]}], "c": True}),
    ({"a": np.float32(0.5), "b": np.arange(3)}, {"a": 0.5, "b": [0, 1, 2]}),
    ({"a": np.array([["x", "y"]]), "b": np.bool_(True)}, {"a": [["x", "y"]], "b": True}),
    ({"a": np.longdouble(2)}, {"a": "2.0"}),
    ({1: "a", None: "b", (1, 2): "c", np.int64(3): "d"}, {"1": "a", "None": "b", "(1, 2)": "c", "3": "d"}),
    ({"a": {1}, "b": b"x"}, {"a": "frozenset({1})", "b": "b'x'"}),
    ({"a": fractions.Fraction(1, 2)}, {"a": "1/2"}),
  ],
)  # fmt: skip
def test_a_first_state_of_an_odd_meta(meta, want):
  """Numbers, lists and dicts stay what they are, everything else is text; the step gets the same."""
  example = Example("q", "s", "a", meta)
  found = base.first_state(example, 0)["meta"]
  assert found == want
  assert json.loads(json.dumps(found)) == want
  state = base.begin(base.first_state, example, 0)
  assert state["meta"] == want
  state["meta"]["mine"] = 1  # unlike the example's, it can be changed
