"""Labels of steps by continuations, on a group worked out by hand: a token is a digit, 9 ends a
step, 0 stops.
"""

from typing import Any

import jax
import numpy as np
import pytest

from grpo_jax.loops.groups import Scored
from grpo_jax.loops.reward_data import continuations
from grpo_jax.sampling import rollouts
from grpo_jax.tokenizer import making
from grpo_jax.types import STOPPED, TRUNCATED, Example, Prompts, Rollouts

L = 6
SAMPLES = [
  ([1, 9, 2, 9, 5, 0], STOPPED),  # right
  ([1, 9, 3, 9, 4, 0], STOPPED),  # wrong
  ([7, 9, 2, 9], TRUNCATED),
  ([5, 0], STOPPED),  # right in one step
  ([9, 1, 9], TRUNCATED),  # one step, which has no label
]
# How many of four continuations reach the answer, 5.
SUCCESSES = {(1, 9): 3, (1, 9, 2, 9): 4, (1, 9, 3, 9): 0, (7, 9): 1, (9, 1): 2}
keys: list = []  # of the noise, one for each prefix that was continued
TOO_LONG = (1, 9, 3, 9)  # whose continuations come to the right answer after more than L tokens


class Digits:
  # no text ends a completion
  before_stop = tokens_before_stop = staticmethod(lambda _: None)

  def step_ends(self, tokens: list[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token == 9 and i > 0]
    return ends if ends[-1:] == [len(tokens) - 1] else [*ends, len(tokens) - 1]

  def decode(self, tokens: list[int]) -> str:
    return "".join(map(str, tokens))


def solved(example: Example, completion: Any) -> float:
  if completion.text.endswith("8"):
    raise ValueError("eight")
  return float(completion.ended == STOPPED and completion.text.endswith(example.answer))


def batch() -> Scored:
  tokens, lengths, ended = (
    np.zeros((2, 5, L), np.int32),
    np.zeros((2, 5), np.int32),
    np.zeros((2, 5), np.int32),
  )
  for g, (sample, end) in enumerate(SAMPLES):
    tokens[0, g, : len(sample)], lengths[0, g], ended[0, g] = sample, len(sample), end
  prompts = Prompts(np.array([[4, 4, 0], [0, 0, 0]], np.int32), np.array([2, 0], np.int32))
  zeros = np.zeros(tokens.shape, np.float32)
  found = Rollouts(prompts, tokens, lengths, ended, zeros, zeros, zeros, zeros > 0, zeros[:, :, :1])
  return Scored([Example("44", "", "5", {}), None], found, [], 0.0)


def draw(sample: Any, params: Any, prompts: Prompts, key: Any, sizes: Any) -> tuple[Rollouts, dict]:
  """Four continuations of each prompt: a step, and the answer 5 in as many as SUCCESSES says, else
  6.
  """
  assert prompts.tokens.shape == (3, 3 + L)
  tokens, lengths = np.zeros((3, 4, L), np.int32), np.zeros((3, 4), np.int32)
  for row, length, out, ends in zip(prompts.tokens, prompts.lengths, tokens, lengths):
    if not length:
      continue
    assert row[:2].tolist() == [4, 4] and not row[length:].any()
    prefix = tuple(row[2:length].tolist())
    sample.append((prefix, key))
    for g in range(4):
      text = [2, 5, 0] if prefix == TOO_LONG else [5, 0] if g < SUCCESSES[prefix] else [6, 0]
      out[g, : len(text)], ends[g] = text, len(text)
  zeros = np.zeros(tokens.shape, np.float32)
  return Rollouts(prompts, tokens, lengths, np.where(lengths, STOPPED, TRUNCATED), zeros, zeros), {}


def label(
  monkeypatch: pytest.MonkeyPatch, labels: str
) -> tuple[Rollouts, continuations.Counts, list]:
  monkeypatch.setattr(rollouts, "draw", draw)
  asked: Any = []
  make = continuations.LABELS[labels]
  # type: ignore
  labeller = continuations.Labeller(asked, None, Digits(), solved, 0.0, make, 3, 4, L)
  found, counts = continuations.label(labeller, None, batch(), jax.random.key(0))
  keys.clear()
  keys.extend(key for _, key in asked)
  return found, counts, [prefix for prefix, _ in asked]


@pytest.mark.parametrize(
  "labels, want",
  [
    ("soft", [{1: 0.75, 3: 1.0, 5: 1.0}, {1: 0.75, 3: 0.0, 5: 0.0}, {1: 0.25}, {1: 1.0}, {}]),
    ("hard", [{1: 1.0, 3: 1.0, 5: 1.0}, {1: 1.0, 3: 0.0, 5: 0.0}, {1: 1.0}, {1: 1.0}, {}]),
  ],
)
def test_labels_of_a_group(monkeypatch, labels, want):
  found, _, _ = label(monkeypatch, labels)
  assert found.rewards is not None and found.given is not None and not found.given[1].any()
  assert [
    {int(t): float(r[t]) for t in np.flatnonzero(g)}
    for r, g in zip(found.rewards[0], found.given[0])
  ] == want
  assert not found.rewards[~found.given].any()


def test_counts_and_that_each_prefix_is_continued_once(monkeypatch):
  _, counts, asked = label(monkeypatch, "soft")
  assert counts == continuations.Counts(steps=8, wrong=3, unfinished=2, continued=4, faults=0)
  assert len(asked) == 4 and set(asked) == {(1, 9), (1, 9, 2, 9), (1, 9, 3, 9), (7, 9)}
  assert [len(each) for each in asked] == [2, 2, 4, 4]


def test_each_batch_of_prefixes_has_noise_of_its_own(monkeypatch):
  label(monkeypatch, "soft")
  data = [jax.random.key_data(key).tobytes() for key in keys]
  assert data[0] == data[1] == data[2] != data[3]  # three at a time


def test_a_reward_that_fails_counts_as_wrong(monkeypatch):
  monkeypatch.setitem(SUCCESSES, (7, 9), 0)
  monkeypatch.setattr(
    Digits,
    "decode",
    lambda self, tokens: "8" if tokens[:3] == [7, 9, 6] else "".join(map(str, tokens)),
  )
  found, counts, _ = label(monkeypatch, "hard")
  assert counts.faults == 4 and found.rewards is not None and found.rewards[0, 2, 1] == 0


def test_continuations_that_other_hosts_judged_count(monkeypatch):
  own = continuations.continue_prefixes
  monkeypatch.setattr(continuations.hosts, "gather", lambda value: [value, (value[0] + 1, 2)])
  found, failed = [], []

  def counted(*args: Any) -> Any:
    right, faults = own(*args)
    found.append(right)
    failed.append(faults)
    return right, faults

  monkeypatch.setattr(continuations, "continue_prefixes", counted)
  label(monkeypatch, "hard")
  assert found and all(each % 2 for right in found for each in right)  # n + (n + 1)
  assert all(faults == 2 for faults in failed)


def test_all_hosts_learn_what_the_reward_of_process_0_said(monkeypatch):
  asked: Any = []
  labeller = continuations.Labeller(
    asked, None, Digits(), solved, 0.0, continuations.LABELS["hard"], 3, 4, L
  )
  own, _ = continuations.outcomes(labeller, batch())
  monkeypatch.setattr(continuations.hosts, "gather", lambda value: [(~value[0], 7), value])
  right, failed = continuations.outcomes(labeller, batch())
  assert own.any() and (right == ~own).all() and failed == 7


def test_a_continuation_that_is_too_long_is_cut_before_it_is_judged(monkeypatch):
  """A reward that does not look at `ended` must not see an answer beyond max_length; this one looks
  at the text.
  """
  seen: list[str] = []

  def lenient(example: Example, completion: Any) -> float:
    seen.append(completion.text)
    assert completion.text == "".join(map(str, completion.tokens))
    return float("5" in completion.text)

  make: Any = continuations.Labeller
  labeller = make([], None, Digits(), lenient, 0.0, continuations.LABELS["soft"], 3, 4, L)
  prefix = continuations.Prefix(0, TOO_LONG)
  drawn, _ = draw([], None, continuations.prefix_prompts(batch().rollouts, [prefix], 3), None, None)
  drawn.tokens[0, :, 1] = 6, 6, 6, 5  # the last of L
  drawn.tokens[0, :, 2] = 5
  right, failed = continuations.judge(labeller, drawn, [batch().examples[0]], [prefix])
  assert seen == ["193926", "193926", "193926", "193925"] and (right.tolist(), failed) == ([1], 0)


def test_a_stop_text_belongs_to_the_last_step():
  """One with a line break in it would otherwise be a step of its own, with the outcome's label."""
  tokenizer = making.train_bpe(["a 3\nb 5\n\nAnn"], 300)
  tokenizer.stop_texts = ("\n\nAnn",)
  ids = np.array(tokenizer.encode("a 3\nb 5\n\nAnn"), np.int32)[None, None]
  one = np.full((1, 1), ids.shape[-1], np.int32)
  prompts = Prompts(np.ones((1, 1), np.int32), np.ones(1, np.int32))
  zeros = np.zeros(ids.shape, np.float32)
  for ended, steps in ((STOPPED, 2), (TRUNCATED, 3)):
    r = Rollouts(prompts, ids, one, np.full((1, 1), ended, np.int32), zeros, zeros)
    ((ends,),) = continuations.step_ends(r, tokenizer)
    assert len(ends) == steps and ends[-1] == ids.shape[-1] - 1
