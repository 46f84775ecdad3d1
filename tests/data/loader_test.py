import collections
import itertools
import json

import numpy as np
import pytest

from grpo_jax.data import loader
from grpo_jax.data.arithmetic import Arithmetic
from grpo_jax.errors import CheckpointError, DataError, SettingError
from grpo_jax.types import Example


def _set(n, name="q"):
  return [Example(f"{name}{i}", "", str(i), {}) for i in range(n)]


def _questions(batch):
  return [example and example.question for example in batch]


def test_epochs_and_shuffling():
  batches = loader.Batches([_set(10)], prompts=5, seed=3)
  epochs = [_questions(next(batches) + next(batches)) for _ in range(3)]
  assert all(sorted(epoch) == sorted(_questions(_set(10))) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  other = loader.Batches([_set(10)], prompts=5, seed=4)
  assert _questions(next(other) + next(other)) != epochs[0]
  plain = loader.Batches([_set(4)], prompts=3, seed=0, shuffle=False)
  assert _questions(next(plain) + next(plain)) == ["q0", "q1", "q2", "q3", "q0", "q1"]


def test_mixture_by_weight():
  batches = loader.Batches([_set(50, "a"), _set(7, "b")], [3, 1], prompts=8, seed=0)
  rows = [question for batch in itertools.islice(batches, 50) for question in _questions(batch)]
  counts = collections.Counter(question[0] for question in rows)
  assert counts == {"a": 300, "b": 100}
  # Every data set goes through its own epochs.
  assert max(collections.Counter(row for row in rows if row[0] == "b").values()) == 15


def test_resumes_exactly():
  def batches():
    return loader.Batches([Arithmetic(size=40), _set(9)], [2, 1], prompts=6, seed=1)

  whole = [_questions(batch) for batch in itertools.islice(batches(), 20)]
  for stop in (0, 1, 7, 13):
    first = batches()
    for _ in range(stop):
      next(first)
    state = json.loads(json.dumps(first.get_state()))
    second = batches()
    second.set_state(state)
    assert [_questions(batch) for batch in itertools.islice(second, 20 - stop)] == whole[stop:]


def test_refuses_the_state_of_other_data():
  batches = loader.Batches([_set(5)], prompts=1, seed=0)
  with pytest.raises(CheckpointError, match=r"\[6\] examples, and these have \[5\]"):
    batches.set_state(loader.Batches([_set(6)], prompts=1, seed=0).get_state())


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(prompts=1, weights=[1, 0]), "data.mixture has weights"),
    (dict(prompts=1, weights=[1]), "data.mixture has weights"),
    (dict(prompts=1, weights=[1, float("nan")]), "data.mixture has weights"),
  ],
)
def test_bad_settings(arguments, message):
  with pytest.raises(SettingError, match=message):
    loader.Batches([_set(3), _set(4)], seed=0, **arguments)


def test_empty_data_set():
  with pytest.raises(DataError, match="at least one"):
    loader.Batches([_set(3), []], prompts=1, seed=0)


def test_in_order():
  rows = [_questions(batch) for batch in loader.in_order(_set(5), 2)]
  assert rows == [["q0", "q1"], ["q2", "q3"], ["q4", None]]
  assert [_questions(batch) for batch in loader.in_order(_set(5), 2, limit=3)] == [
    ["q0", "q1"],
    ["q2", None],
  ]


def _render(question):
  return [ord(c) for c in question]


def test_to_prompts():
  examples = [
    Example("ab", "", "", {}),
    None,
    Example("abcd", "", "", {}),
    Example("abc", "", "", {}),
  ]
  prompts, long = loader.to_prompts(examples, _render, 3)
  a, b, c, d = map(ord, "abcd")
  np.testing.assert_array_equal(prompts.tokens, [[a, b, 0], [0, 0, 0], [0, 0, 0], [a, b, c]])
  np.testing.assert_array_equal(prompts.lengths, [2, 0, 0, 3])
  assert prompts.tokens.dtype == prompts.lengths.dtype == np.int32 and long == 1  # left out
  prompts, long = loader.to_prompts(examples, _render, 3, on_long="cut")
  np.testing.assert_array_equal(prompts.tokens, [[a, b, 0], [0, 0, 0], [b, c, d], [a, b, c]])
  np.testing.assert_array_equal(prompts.lengths, [2, 0, 3, 3])
  assert long == 0


def test_to_prompts_refuses():
  example = Example("ab", "", "", {})
  with pytest.raises(DataError, match="has no token"):
    loader.to_prompts([example], lambda _: [], 3)
