"""Between the sampler and the learner: text, what is measured of lengths, arrays to the devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.sampling import rollouts as host
from grpo_jax.types import STOPPED, TRUNCATED, Prompts, Rollouts


class Letters:
  """A tokenizer whose token i is the i-th letter."""

  # no text ends a completion
  before_stop = tokens_before_stop = staticmethod(lambda _: None)

  def decode(self, ids):
    return "".join(chr(ord("a") + i) for i in ids)

  def step_ends(self, tokens):
    return [len(tokens) - 1]


def rollouts(lengths, ended=None, longest=None) -> Rollouts:
  lengths = np.asarray(lengths, np.int32)
  shape = (*lengths.shape, longest or int(lengths.max()))
  tokens = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
  ended = np.full(lengths.shape, STOPPED) if ended is None else np.asarray(ended)
  zeros = np.zeros(shape, np.float32)
  return Rollouts(
    Prompts(np.ones((len(lengths), 3), np.int32), np.full(len(lengths), 3)),
    tokens,
    lengths,
    ended,
    zeros,
    zeros,
  )


def long_tailed(rng, prompts, group, longest) -> np.ndarray:
  """Lengths such as a policy gives them: most are short, few reach the limit."""
  return np.clip(rng.lognormal(np.log(longest / 5), 0.8, (prompts, group)), 1, longest).astype(
    np.int32
  )


def test_statistics():
  r = rollouts([[2, 4], [6, 0]], [[STOPPED, TRUNCATED], [TRUNCATED, STOPPED]], longest=8)
  got = host.statistics(r)
  assert got["length/mean"] == 4 and got["length/min"] == 2 and got["length/max"] == 6
  # the row that only fills the batch does not count
  assert got["truncated"] == pytest.approx(2 / 3)
  assert host.statistics(rollouts([[0]], longest=4)) == {}


def test_turns_are_counted_and_what_was_read():
  """Counts two turns and one, of 3 + 1 + 2 = 6 sampled tokens of 8, and no filler."""
  sampled = np.array([[[1, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0] * 5]], bool)
  r = dataclasses.replace(rollouts([[5, 3, 0]], longest=5), sampled=sampled)
  assert host.turn_statistics(r) == {
    "turns/mean": 1.5, "turns/max": 2, "turns/read_share": 0.25,
  }  # fmt: skip


def test_completions_leave_the_stop_token_out_of_the_text_and_in_the_tokens():
  r = rollouts([[3, 4], [0, 1]], [[STOPPED, TRUNCATED], [STOPPED, STOPPED]], longest=4)
  (first, cut), (none, only_end) = host.completions(r, Letters())
  assert (first.text, first.tokens, first.ended) == ("ab", (0, 1, 2), STOPPED)
  assert (cut.text, cut.tokens, cut.ended) == ("abcd", (0, 1, 2, 3), TRUNCATED)
  assert (none.text, none.tokens, none.step_ends) == ("", (), ())
  assert (only_end.text, only_end.tokens) == ("", (0,))


def test_a_completion_has_the_last_reward_of_its_environment():
  r = rollouts([[3, 4], [2, 2]], longest=4)
  assert all(each.reward is None for group in host.completions(r, Letters()) for each in group)
  values = np.arange(16, dtype=np.float32).reshape(2, 2, 4)
  given = np.zeros((2, 2, 4), bool)
  given[0, 0, [0, 2]] = given[1, 1, 1] = True
  own = np.ones((2, 2, 4), bool)
  r = dataclasses.replace(r, sampled=own, rewards=values, given=given)
  (one, two), (three, four) = host.completions(r, Letters())
  assert (one.reward, two.reward, three.reward, four.reward) == (2.0, None, None, 13.0)


@pytest.mark.parametrize("mesh", [tiny.ONE, (2, 2, 2, 1), (1, 1, 4, 2)])
def test_to_device_and_back(mesh):
  r = rollouts(long_tailed(np.random.default_rng(0), 8, 4, 6), longest=6)
  r = dataclasses.replace(
    r, rewards=np.random.default_rng(1).normal(size=r.tokens.shape).astype(np.float32)
  )
  layout = tiny.layout(mesh)
  there = host.to_device(layout, (r, None))[0]
  assert len(there.tokens.addressable_shards[0].data) == 8 // layout.size("prompt")
  assert there.tokens.addressable_shards[0].data.shape[1] == 4 // layout.size("sample")
  back = host.to_host(there)
  for a, b in zip((r.tokens, r.lengths, r.rewards), (back.tokens, back.lengths, back.rewards)):
    np.testing.assert_array_equal(a, b)
  assert back.old_logprobs is None


def test_what_a_group_shares_is_not_cut_over_its_samples():
  """A prompt's second axis holds tokens, though its length may divide over the shards of samples."""
  layout = tiny.layout((1, 2, 2, 2))
  r = host.to_device(layout, tiny.sample())
  assert r.prompts.tokens.shape == (tiny.P, tiny.LP)
  assert r.prompts.tokens.addressable_shards[0].data.shape == (tiny.P // 2, tiny.LP)
  assert r.prompts.lengths.addressable_shards[0].data.shape == (tiny.P // 2,)
  assert r.lengths.addressable_shards[0].data.shape == (tiny.P // 2, tiny.G // 2)
  alone = host.to_device(layout, tiny.prompts())
  assert alone.tokens.addressable_shards[0].data.shape == (tiny.P // 2, tiny.LP)


def test_what_depends_on_no_argument_is_whole_on_each_process(monkeypatch):
  """An objective's `flat` that is always False, say: gathered, it would be there twice."""
  flat = jax.jit(lambda tokens: jnp.zeros(tokens.shape[0], bool))(np.zeros((4, 2)))
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(
    host.multihost_utils, "process_allgather", lambda x, tiled: np.concatenate([x, x])
  )
  np.testing.assert_array_equal(host.to_host({"flat": flat})["flat"], np.zeros(4, bool))
