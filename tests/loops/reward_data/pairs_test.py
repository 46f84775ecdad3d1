"""Pairs for reward models."""

from typing import Any

import jax
import numpy as np
import pytest
from offline_test import FLAT, OUTCOMES, ROUNDED, TIED, TWO_WORST, L, scored
from passed_on_test import stub
from reward_model_test import config, line, write

from grpo_jax.errors import GrpoError
from grpo_jax.loops import groups
from grpo_jax.loops.reward_data import pairs
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.types import STOPPED, TRUNCATED


@pytest.mark.parametrize(
  ("longest", "length", "ended"), [(2, 2, TRUNCATED), (3, 3, TRUNCATED), (4, 4, STOPPED)]
)
def test_a_text_has_stopped_where_its_end_token_fits(longest, length, ended):
  model: Any = stub(tokenizer=stub(encode=lambda text: [*map(int, text)]), end=lambda: 9)
  tokens, lengths, how = pairs.encoded([("567", None)], model, longest)
  assert tokens.tolist() == [[[5, 6, 7, 9][:longest], [0] * longest]]
  assert lengths.tolist() == [[length, 0]] and how.tolist() == [[ended, TRUNCATED]]


def assert_pairs(batch: groups.Scored, want: dict[int, list[tuple[int, int]]]) -> None:
  """The groups of `batch` are those of `want`, each one of the pairs (chosen, rejected) there, in
  all of its arrays.
  """
  r = batch.rollouts
  assert (
    [int(row.question) for row in batch.examples] == r.prompts.tokens[:, 0].tolist() == list(want)
  )
  for p, (n, may) in enumerate(want.items()):
    assert tuple(r.tokens[p, :, 0] - 100 * n) in may
    for i in range(2):
      real = np.arange(L) < r.lengths[p, i]
      np.testing.assert_array_equal(r.tokens[p, i], np.where(real, r.tokens[p, i, 0], 0))
      np.testing.assert_array_equal(r.sampler_logprobs[p, i], -r.tokens[p, i])
      np.testing.assert_array_equal(r.truncated_logprobs[p, i], -2 * r.tokens[p, i])
      np.testing.assert_array_equal(r.given[p, i], real)
      assert r.ended[p, i] == (STOPPED if r.lengths[p, i] % 2 else TRUNCATED)
      assert r.components[p, i, 0] == pytest.approx(r.rewards[p, i].sum())
    assert r.rewards[p, 0].sum() > r.rewards[p, 1].sum()


@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_one_of_the_best_and_one_of_the_worst(seed):
  batch = scored(1, TIED, OUTCOMES, FLAT, TWO_WORST, ROUNDED, OUTCOMES)
  want = {2: [(1, 2)], 4: [(1, 0), (1, 2)], 6: [(1, 2)]}
  assert_pairs(pairs.of_samples(batch, seed), want)


def test_any_of_several_equal_samples_may_be_taken():
  batch = scored(1, TWO_WORST)
  assert {int(pairs.of_samples(batch, seed).rollouts.tokens[0, 1, 0]) for seed in range(20)} == {
    100,
    102,
  }


@pytest.mark.parametrize("groups", [(TIED,), (FLAT, ROUNDED, TIED)])
def test_groups_whose_totals_tie_are_no_pairs(groups):
  """Chosen would equal rejected."""
  got = pairs.of_samples(scored(1, *groups), 0)
  assert got.examples == [] and got.rollouts.tokens.shape == (0, 2, L)


def test_no_prompt_is_on_both_sides():
  assert pairs.divide("abacbdae", 2) == ([0, 1], [3, 5, 7])
  assert pairs.divide("aab", 0) == ([], [0, 1, 2])
  assert pairs.divide("aa", 2) == ([0], [])


@pytest.fixture(scope="module")
def model():
  return build.model(make(config()), jax.devices()[:1], scores=True)


def test_a_file_of_pairs_is_divided_by_its_prompts(model, tmp_path):
  c = config()
  c.offline.pairs, c.offline.held_out = write(tmp_path / "p.jsonl", [line(n) for n in range(10)]), 2
  found = pairs.FromFile(make(c), model)
  held = {row.prompt for row in found.held_out}
  assert len(held) == 2 and len(found.held_out) == 4  # all pairs of a prompt
  r = next(found)
  assert r.tokens.shape == (4, 2, L) and (r.ended == STOPPED).all()
  text = model.tokenizer.decode(r.tokens[0, 0, : r.lengths[0, 0] - 1].tolist())
  assert r.tokens[0, 0, r.lengths[0, 0] - 1] == model.tokenizer.eos_id
  question = model.tokenizer.decode(r.prompts.tokens[0, : r.prompts.lengths[0]].tolist())
  assert question == f"{int(text) % 5} + 1\n" and question.strip() not in held


def test_pairs_that_are_not_shuffled_stay_in_the_order_of_their_file(model, tmp_path):
  c = config()
  c.data.shuffle = False
  c.offline.pairs, c.offline.held_out = write(tmp_path / "p.jsonl", [line(n) for n in range(10)]), 2
  found = pairs.FromFile(make(c), model)
  held = {row.prompt for row in found.held_out}
  in_order = [row for row in pairs.read(c.offline.pairs) if row.prompt not in held]
  assert len(held) == 2 and next(found.order) == in_order[: c.data.prompts]


def test_a_pair_that_is_too_long_is_an_empty_group(model, tmp_path):
  c = config()
  c.offline.pairs = write(tmp_path / "p.jsonl", [line(0, rejected="1 " * 40), line(1)])
  c.offline.held_out = 0
  found = pairs.FromFile(make(c), model)
  r = found.rollouts(pairs.read(c.offline.pairs))
  assert r.lengths[0].tolist() == [0, 0] and r.prompts.lengths[0] == 0 and not r.tokens[0].any()
  assert (r.lengths[1] > 0).all()


@pytest.mark.parametrize(
  "lines, held_out, message",
  [
    (
      [{"prompt": "a", "chosen": "b"}],
      0,
      'line 1: no field "rejected"; the line has chosen, prompt',
    ),
    ([line(1), line(2, chosen=" ")], 0, 'line 2: field "chosen" should be text that is not empty'),
    (
      [line(1), line(2, prompt=[{"role": "user", "content": "a"}])],
      0,
      'line 2: field "prompt" should be text',
    ),
    ([line(1), line(2)], 2, "offline.held_out=2: .* has 2 prompts; use at most 1"),
    (
      [line(1, chosen="1 " * 40)],
      0,
      "its first 1 pairs are all longer than data.max_prompt_length=16 or sampler.max_",
    ),
  ],
)
def test_a_file_that_is_no_good_is_refused(model, tmp_path, lines, held_out, message):
  c = config()
  c.offline.pairs, c.offline.held_out = write(tmp_path / "p.jsonl", lines), held_out
  with pytest.raises(GrpoError, match=message):
    pairs.FromFile(make(c), model)


def test_groups_without_a_difference_make_no_pair():
  assert pairs.of_samples(scored(1, TIED, FLAT), 0, complete=True).examples == []
