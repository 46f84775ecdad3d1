import collections
import re

import grain
import pytest

from grpo_jax.data import arithmetic
from grpo_jax.environments import calculator
from grpo_jax.errors import SettingError
from grpo_jax.rewards.math import answer_correct, well_formed
from grpo_jax.rewards.steps import steps_correct
from grpo_jax.tokenizer.making import word_level
from grpo_jax.types import STOPPED, Completion


def _numbers(text):
  return tuple(sorted(map(int, re.findall("[0-9]+", text))))


def _examples(split, n=1500, **settings):
  source = arithmetic.Arithmetic(split, size=n, **settings)
  return [source[i] for i in range(n)]


def test_pinned_problem():
  """The stream is part of the data set: a change of it makes old checkpoints and numbers
  meaningless.
  """
  example = arithmetic.Arithmetic("test", seed=0)[0]
  assert (
    example.question
    == "Sam buys 5 pens for $7 each and a basket for $52. How many dollars does Sam pay?"
  )
  assert example.solution == "Pens cost 5 * 7 = 35\nSam pays 35 + 52 = 87\n#### 87"
  assert example.answer == "87"
  assert example.meta == {
    "family": "shopping",
    "numbers": [5, 7, 52],
    "steps": 2,
    "results": [35, 87],
    "index": 0,
  }


CALL = r"<<calc: ([^<>]*)>>(\d+)"


def test_worked_solutions_call_the_calculator():
  """It gives the result that is written after each call; but for calls the text is what it was."""
  called = _examples("train", 200, calls=True) + _examples(
    "test", 100, calls=True, min_steps=5, max_steps=8
  )
  plain = _examples("train", 200) + _examples("test", 100, min_steps=5, max_steps=8)
  for with_calls, without in zip(called, plain, strict=True):
    calls = re.findall(CALL, with_calls.solution)
    assert [int(written) for _, written in calls] == with_calls.meta["results"]
    text = ""
    for turn in with_calls.solution.split(">>"):
      text += turn
      answer = calculator.step({}, Completion(turn, [1], STOPPED, []))
      if answer.observation is not None:
        text += ">>"
        assert with_calls.solution.startswith(text + answer.observation), text
    assert text == with_calls.solution
    assert re.sub(CALL, r"\1 = \2", with_calls.solution) == without.solution
    assert with_calls._replace(solution="") == without._replace(solution="")
    assert answer_correct(with_calls, Completion(with_calls.solution, [1], STOPPED, [0])) == 1


def test_a_pinned_solution_with_calls():
  pens = arithmetic.Arithmetic("test", seed=0, calls=True)[0].solution
  assert pens == "Pens cost <<calc: 5 * 7>>35\nSam pays <<calc: 35 + 52>>87\n#### 87"
  pens = arithmetic.Arithmetic("test", seed=0, calls=True, words=False)[0].solution
  assert pens == "<<calc: 5 * 7>>35\n<<calc: 35 + 52>>87\n#### 87"


def test_solutions_are_true_and_in_form():
  for example in _examples("train", max_number=60) + _examples(
    "test", 300, max_number=60, min_steps=5, max_steps=8
  ):
    *lines, last = example.solution.split("\n")
    results = []
    for line in lines:
      left, op, right, result = re.fullmatch(
        r"[A-Za-z ]*?(\d+) ([-+*/]) (\d+) = (\d+)", line
      ).groups()
      left, right, result = int(left), int(right), int(result)
      assert {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[
        op
      ] == result
      results.append(result)
    assert results == example.meta["results"] and len(results) == example.meta["steps"]
    assert last == f"#### {example.answer}" and int(example.answer) == results[-1]
    assert all(2 <= n <= 60 for n in (*results, *example.meta["numbers"]))
    assert tuple(sorted(example.meta["numbers"])) == _numbers(example.question)


def test_steps_use_the_question():
  """Every number of the question is used, and a step's operand is a number of the question, an
  earlier result, or 2.
  """
  for example in _examples("train", 400) + _examples("test", 200, min_steps=5, max_steps=8):
    known = collections.Counter(example.meta["numbers"])
    unused = set(known)
    for line in example.solution.split("\n")[:-1]:
      *operands, result = map(int, re.findall(r"\d+", line))
      assert all(n in known or n == 2 for n in operands)
      unused -= set(operands)
      known[result] += 1
    assert not unused


def test_rewards_agree_with_the_solutions():
  for example in _examples("test", 200):
    lines = example.solution.split("\n")
    completion = Completion(
      example.solution, list(range(len(lines))), STOPPED, list(range(len(lines)))
    )
    assert answer_correct(example, completion) == 1.0
    assert well_formed(example, completion) == 1.0
    assert steps_correct(example, completion) == [(i, 1.0) for i in range(len(lines))]


def test_random_access_and_seeds():
  a, b, c = (arithmetic.Arithmetic("train", seed=seed) for seed in (0, 0, 1))
  assert [a[i] for i in (5, 3, 99_999, 5)] == [b[i] for i in (5, 3, 99_999, 5)]
  assert a[3] != c[3] and a[3] != a[5]
  # The size, and with it the length of an epoch, does not change a problem.
  assert arithmetic.Arithmetic("train", size=10)[3] == a[3]
  with pytest.raises(IndexError):
    arithmetic.Arithmetic("train", size=10)[10]
  assert (
    grain.MapDataset.source(a).seed(1).shuffle()[0]
    == grain.MapDataset.source(b).seed(1).shuffle()[0]
  )


def test_train_and_test_are_disjoint_up_to_the_order_of_numbers():
  train = {
    _numbers(e.question)
    for seed in (0, 1)
    for e in _examples("train", 4000, seed=seed, max_number=30)
  }
  for split in ("test", "validation"):
    for seed in (0, 7):
      held_out = {_numbers(e.question) for e in _examples(split, seed=seed, max_number=30)}
      assert len(held_out) > 100 and not held_out & train


def test_split_depends_on_sorted_numbers_alone():
  assert arithmetic.split_of([3, 48, 7]) == arithmetic.split_of([48, 7, 3])
  counts = collections.Counter(arithmetic.split_of([a, b]) for a in range(60) for b in range(a))
  total = sum(counts.values())
  assert 0.07 < counts["test"] / total < 0.13 and 0.07 < counts["validation"] / total < 0.13


def test_the_vocabulary_is_small_and_closed():
  """A tokenizer of words made from some of the training problems spells no word of other problems."""
  tokenizer = word_level(f"{e.question}\n{e.solution}" for e in _examples("train", 3000))
  for example in _examples("test", 500) + _examples("train", 500, seed=9, words=False):
    text = f"{example.question}\n{example.solution}"
    words = [tokenizer.text(token) for token in tokenizer.encode(text)]
    assert "".join(words) == text
    assert not [
      word for word, after in zip(words, words[1:]) if word.strip().isalpha() and after.isalpha()
    ]
  assert 200 <= tokenizer.vocab_size <= 350  # 99 of these are special tokens and single characters


def test_short_enough_for_a_small_model():
  examples = _examples("train")
  tokenizer = word_level(f"{e.question}\n{e.solution}" for e in examples)
  assert max(len(tokenizer.encode(example.question)) for example in examples) <= 60
  assert max(len(tokenizer.encode(example.solution)) for example in examples) <= 60


def test_settings():
  assert {e.meta["steps"] for e in _examples("train", 200, min_steps=2, max_steps=3)} == {2, 3}
  assert {e.meta["family"] for e in _examples("train", 50, families=("gain", "bus"))} == {
    "gain",
    "bus",
  }
  solution = arithmetic.Arithmetic("test", words=False)[0].solution
  assert solution == "5 * 7 = 35\n35 + 52 = 87\n#### 87"
  small = _examples("train", 300, max_factor=3, families=("two_kinds",))
  assert max(n for e in small for n in e.meta["numbers"]) == 3


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"split": "dev"}, "'dev'"),
    ({"families": ("gain", "loan")}, "'loan'"),
    ({"min_steps": 5}, "min_steps = 5"),
    ({"min_steps": 9, "max_steps": 9}, "steps go from 1 to 8"),
    ({"max_number": 3}, "max_number = 3"),
    ({"max_number": 1}, "max_number = 1"),
    ({"max_factor": 1}, "max_factor = 1"),
  ],
)
def test_bad_settings(settings, message):
  with pytest.raises(SettingError, match=message) as error:
    arithmetic.Arithmetic(**settings)
  assert "\n" not in str(error.value)
