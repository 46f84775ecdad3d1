"""Pairs of the past that are learned from again."""

import numpy as np
import pytest

from grpo_jax.loops.reward_data import replay
from grpo_jax.loops.reward_data.replay import Replay, lessons
from grpo_jax.types import Prompts, Rollouts


def pairs(first: int, count: int) -> Rollouts:
  """So many pairs, whose tokens are numbers from `first` on."""
  n = np.arange(first, first + count, dtype=np.int32)
  tokens = np.broadcast_to(n[:, None, None], (count, 2, 3)).copy()
  zeros = np.zeros(tokens.shape, np.float32)
  lengths = np.full((count, 2), 3, np.int32)
  prompts = Prompts(tokens[:, 0], lengths[:, 0])
  return Rollouts(
    prompts, tokens, lengths, lengths * 0 + 1, zeros, zeros, zeros, zeros > 0, zeros[..., :1]
  )


def test_no_process_reads_pairs_before_process_0_has_written_them(tmp_path, monkeypatch):
  met = []
  kept = Replay(str(tmp_path))
  monkeypatch.setattr(replay.hosts, "gather", lambda own: met.append(kept.path(3).is_file()))
  kept.add(3, pairs(0, 2))
  assert met == [True]


def numbers(lesson) -> list[int]:
  real = lesson.pairs.lengths.all(axis=1)
  assert not lesson.pairs.tokens[~real].any() and real.sum() == lesson.new + lesson.replayed
  return lesson.pairs.tokens[real, 0, 0].tolist()


def test_a_tenth_of_each_batch_is_of_the_past_and_none_comes_twice():
  found = list(lessons(pairs(100, 20), pairs(0, 3), batch=10, share=0.1, epochs=2, seed=0))
  assert [(each.new, each.replayed) for each in found] == [(9, 1), (9, 1), (2, 1), (10, 0), (10, 0)]
  each = [numbers(lesson) for lesson in found]
  old = [n for batch in each for n in batch if n < 100]
  assert sorted(old) == [0, 1, 2]
  for epoch in (each[:3], each[3:]):
    assert sorted(n for batch in epoch for n in batch if n >= 100) == list(range(100, 120))
  assert all(lesson.pairs.lengths.shape == (10, 2) for lesson in found)
  again = list(lessons(pairs(100, 20), pairs(0, 3), batch=10, share=0.1, epochs=2, seed=0))
  assert [numbers(lesson) for lesson in again] == each
  other = list(lessons(pairs(100, 20), pairs(0, 3), batch=10, share=0.1, epochs=2, seed=1))
  assert [numbers(lesson) for lesson in other] != each


def test_a_small_share_of_a_small_batch_is_one():
  found = lessons(pairs(100, 3), pairs(0, 2), batch=4, share=0.1, epochs=1, seed=0)
  assert [(each.new, each.replayed) for each in found] == [(3, 1)]


@pytest.mark.parametrize("batch, share", [(2, 0.8), (8, 0.95)])
def test_a_batch_has_room_for_a_new_pair(batch, share):
  found = lessons(pairs(100, 3), pairs(0, 30), batch=batch, share=share, epochs=1, seed=0)
  assert [(each.new, each.replayed) for each in found] == [(1, batch - 1)] * 3


def test_without_a_past_and_without_new_pairs():
  assert [
    (each.new, each.replayed)
    for each in lessons(pairs(0, 3), None, batch=2, share=0.5, epochs=1, seed=0)
  ] == [
    (2, 0),
    (1, 0),
  ]
  assert not list(lessons(pairs(0, 0), pairs(0, 3), batch=2, share=0.5, epochs=1, seed=0))


def test_pairs_of_steps_are_kept_as_long_as_they_may_be_drawn(tmp_path):
  replay = Replay(str(tmp_path))
  for step in range(5):
    replay.add(step, pairs(10 * step, step))
  assert replay.read(range(2, 4)).tokens[:, 0, 0].tolist() == [20, 21, 30, 31, 32]
  (tmp_path / "replay" / "2.json").write_text("mine\n")
  replay.forget(3)
  assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == [
    "2.json",
    "3.npz",
    "4.npz",
  ]
  with pytest.raises(Exception, match="2.npz: is missing"):
    replay.read([2])
