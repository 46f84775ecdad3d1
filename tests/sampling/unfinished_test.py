"""Groups that last for more than one step."""

import json

import numpy as np
import pytest
import tiny

from grpo_jax.errors import DataError
from grpo_jax.sampling import episodes, unfinished
from grpo_jax.sampling.unfinished import Groups
from grpo_jax.types import Example


def groups(seed: int = 0, longest: int = 5) -> Groups:
  """Random ones: tokens up to the fifth of eight, one empty prompt, states and faults."""
  rng, prompts = np.random.default_rng(seed), tiny.prompts()
  examples = [
    Example(f"q{n}", "s", "a", {"n": n}) if l else None for n, l in enumerate(prompts.lengths)
  ]
  numbers = np.arange(tiny.P, dtype=np.uint32)
  e = episodes.fresh(prompts, examples, numbers, tiny.G, tiny.L)
  e.lengths[:] = rng.integers(0, longest + 1, e.lengths.shape)
  e.lengths[0, 0] = longest
  inside = np.arange(tiny.L) < e.lengths[..., None]
  e.tokens[inside] = rng.integers(0, tiny.V, inside.sum())
  e.sampler_logprobs[inside] = rng.normal(size=inside.sum())
  e.sampled |= inside
  e.version[inside] = 3
  e.states[1, 2] = {"turn": 1}
  e.faults[3, 0] = "broken"
  return Groups(e, numbers.astype(np.int32) + 10, np.full(tiny.P, seed, np.int32))


def assert_equal(a: Groups, b: Groups) -> None:
  for name, x in vars(a.episodes).items():
    y = getattr(b.episodes, name)
    if name == "prompts":
      np.testing.assert_array_equal(x.tokens, y.tokens)
      np.testing.assert_array_equal(x.lengths, y.lengths)
    elif isinstance(x, list | dict):
      assert x == y
    else:
      np.testing.assert_array_equal(x, y, name)
      assert x.dtype == y.dtype
  np.testing.assert_array_equal(a.draws, b.draws)
  np.testing.assert_array_equal(a.born, b.born)


def test_json_holds_all_of_the_groups():
  some = groups()
  again = unfinished.from_json(json.loads(json.dumps(unfinished.to_json(some))))
  assert_equal(again, some)
  again.episodes.tokens[0, 0, 0] = 1  # can be written


def test_groups_are_chosen_and_joined():
  first, second = groups(), groups(1)
  both = unfinished.joined(first, second)
  assert both.episodes.states == {(1, 2): {"turn": 1}, (tiny.P + 1, 2): {"turn": 1}}
  assert_equal(unfinished.chosen(both, range(tiny.P)), first)
  assert_equal(unfinished.chosen(both, range(tiny.P, 2 * tiny.P)), second)
  some = unfinished.chosen(both, [tiny.P + 3, 1])
  assert some.episodes.faults == {(0, 0): "broken"} and some.episodes.states == {
    (1, 2): {"turn": 1}
  }
  assert some.born.tolist() == [1, 0] and some.draws.tolist() == [13, 11]
  some.episodes.tokens[:] = 0  # a copy
  assert first.episodes.tokens.any()


def test_groups_are_dealt_out_over_the_shards():
  np.testing.assert_array_equal(unfinished.dealt(6, 2), [0, 2, 4, 1, 3, 5])
  np.testing.assert_array_equal(unfinished.dealt(3, 1), [0, 1, 2])


@pytest.mark.parametrize(
  "left, due, shards, carry, more",
  [
    ([1, 1, 0, 0], [0, 0, 0, 0], 1, 2, False),
    ([1, 1, 1, 0], [0, 0, 0, 0], 1, 2, True),
    ([1, 0, 0, 0], [1, 0, 0, 0], 1, 2, True),
    ([1, 0, 0, 0], [0, 1, 0, 0], 1, 2, False),
    ([1, 1, 0, 0], [0, 0, 0, 0], 2, 2, True),  # both in the first shard
    ([1, 0, 1, 0], [0, 0, 0, 0], 2, 2, False),
  ],
)
def test_enough_is_complete_when_the_rest_may_be_left(left, due, shards, carry, more):
  unfinished_samples = np.asarray(left, bool)[:, None] & np.asarray([True, False])
  assert unfinished.needs_more(unfinished_samples, np.asarray(due, bool), shards, carry) == more


def test_examples_that_are_not_json_are_refused():
  why = ("sampler.carry", "groups are saved as JSON")
  unfinished.check_json([Example("q", "", "", {"n": [1, "a", None, float("nan")]})], *why)
  for meta in ({"n": {1, 2}}, {"n": (1, 2)}, {1: 2}, {"n": [np.int64(1)]}):
    with pytest.raises(DataError, match=r"sampler\.carry: groups are saved.*not JSON.*carry=0"):
      unfinished.check_json([Example("q", "", "", meta)], *why)
