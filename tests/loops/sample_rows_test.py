"""Rows of samples.jsonl: which groups are kept, and what is told of each completion."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest
import tiny
import tiny_runs
from passed_on_test import groups, stub

from grpo_jax.learning import learn, movement
from grpo_jax.loops import learner, online, sample_rows
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored
from grpo_jax.rewards.combine import Fault
from grpo_jax.sampling import rollouts
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import TRUNCATED, Example, Prompts, Rollouts

FAULT = Fault(1, 0, "parity", "late")


def scored(r: Rollouts, *faults: Fault) -> Scored:
  """A batch with the questions q0, q1, ..."""
  return Scored(
    [Example(f"q{n}", "", f"a{n}", {}) for n in range(len(r.tokens))], r, [*faults], 0.0
  )


def rows_of(
  r: Rollouts, limit: int, *faults: Fault, measured: bool = True, **tokenizer: Any
) -> list[dict[str, Any]]:
  """Rows of samples.jsonl of groups of two with four tokens; the first group has A < 0."""
  numbers = np.arange(8.0 * len(r.tokens)).reshape(-1, 2, 4)
  x = jax.numpy.asarray(numbers)
  none, bound = jax.numpy.full_like(x, np.inf), jax.numpy.full_like(x, 1.2)
  trace = learn.Trace(
    -x, 2 * x, x - 16, jax.numpy.zeros_like(x), none.at[:, :, 1].set(bound[..., 1])
  )
  stands = jax.numpy.where(x == 16, movement.NO_BOUND, x % 3).astype("int8")
  moved = movement.Movement({}, numbers.sum(2), numbers.sum(2) + 1, 0.5 - x, x / 7, stands)
  learned: Any = learner.Learned({}, trace, moved if measured else None, 1.0)
  fields = dict.fromkeys(Collector._fields) | {
    "rewards": [("parity", None, 1.0)],
    "generator": stub(environment=None),
    "models": [],
    "rule": "",
  }
  texts = {"texts": lambda ids: [*map(str, ids)], "decode": str} | tokenizer
  words: Any = stub(before_stop=lambda text: None, **texts)
  model: Any = stub(layout=tiny.layout(), tokenizer=words)
  collector = Collector(**fields)  # type: ignore
  return sample_rows.sample_rows(scored(r, *faults), learned, limit, collector, model)


def test_rows_are_whole_groups_and_show_before_and_after():
  r = groups(2)
  r.lengths[:] = [[4, 2], [3, 0]]
  r.ended[0, 1] = TRUNCATED
  r.given[:, :, [0, 1]] = True
  r.rewards[:, :, 0], r.rewards[:, :, 1] = 0.25, [[1, 2], [3, 4]]
  r.components[:] = 0.5
  rows = rows_of(r, 2, FAULT)
  # the failed reward's group is first; its completion of length 0 only fills the batch
  places = [(row["group"], row["sample"], row["question"]) for row in rows]
  assert places == [(1, 0, "q1"), (0, 0, "q0"), (0, 1, "q0")]
  assert rows[0]["faults"] == "parity: late" and "faults" not in rows[1]
  both = rows_of(r, 1, FAULT, FAULT._replace(name="other", message="is no number"))
  assert both[0]["faults"] == "parity: late; other: is no number"
  assert [row["reward"] for row in rows] == [3.25, 1.25, 2.25]
  assert rows[0]["rewards"] == {"parity": 0.5}
  assert [row["ended"] for row in rows] == ["stopped", "stopped", "truncated"]
  assert [row["advantage"] for row in rows] == [-7.0, -14.5, -11.5]
  assert rows[2]["advantages"] == [-12.0, -11.0] and rows[2]["logprobs"] == [-4.0, -5.0]
  assert rows[2]["tokens"] == ["0", "0"]
  sums = [(row["logprob_before"], row["logprob_after"]) for row in rows]
  assert sums == [(38, 39), (6, 7), (22, 23)]


@pytest.mark.parametrize(
  ("limit", "chosen"), [(0, []), (1, [3]), (2, [3, 1]), (3, [3, 1, 4]), (99, [3, 1, 4, 0])]
)
def test_groups_with_a_fault_are_first_and_then_those_whose_rewards_differ(limit, chosen):
  r = groups(5)
  r.given[:, :, 0] = True
  r.rewards[:, :, 0] = [[1, 1], [0, 1], [0, 1], [1, 1], [1, 0]]
  r.lengths[2] = 0  # only fills the batch
  batch = scored(r, Fault(3, 1, "parity", "late"))
  assert sample_rows.choose_groups(batch, limit) == chosen


def test_a_completion_that_fills_the_batch_makes_no_rewards_differ():
  r = groups(2)
  r.given[:, :, 0] = True
  r.rewards[:, :, 0] = [[1, 0], [0, 1]]
  r.lengths[0, 1] = 0
  assert sample_rows.choose_groups(scored(r), 1) == [1]


def test_one_program_fetches_the_rows_of_every_step(monkeypatch):
  fetched = []

  def rows(layout: Any, tree: Any, places: Any) -> Any:
    fetched.append(len(places))
    return fetch(layout, tree, places)

  fetch = rollouts.rows
  monkeypatch.setattr(sample_rows.rollouts, "rows", rows)
  r = groups(3)
  assert len(rows_of(r, 2)) == 4 and len(rows_of(r, 99)) == 6
  r.lengths[1:] = 0
  assert len(rows_of(r, 2)) == 2 and fetched == [4, 6, 4]
  assert rows_of(r, 0) == [] and len(fetched) == 3


def test_rows_of_episodes_say_who_wrote_each_token_and_where_rewards_were_given():
  r = groups(2)
  r.given[1, 0, [0, 3]] = True
  r.rewards[1, 0] = [0.123456, 9, 9, -1]
  sampled = np.ones((2, 2, 4), bool)
  sampled[1, 0, 1] = False
  of_episodes = dataclasses.replace(r, sampled=sampled)
  row, _ = rows_of(of_episodes, 1, FAULT, texts=lambda ids: ["", *map(str, ids[1:])])
  assert row["sampled"] == [True, False, True, True]
  assert json.loads(json.dumps(row["turn_rewards"])) == [[0, 0.1235], [3, -1.0]]
  assert row["tokens"] == ["", "1", "1", "1"]  # a character belongs to its last token
  assert row["advantages"] == [-8, -7, -6, -5] and row["advantage"] == np.float32(-19 / 3)
  single, _ = rows_of(r, 1, FAULT)
  assert list(row) == [
    "group", "sample", "question", "completion", "answer", "reward", "advantage", "rewards",
    "ended", "tokens", "advantages", "logprobs", "entropies", "logprobs_after",
    "logprob_before", "logprob_after", "ratios", "bounds", "stands", "sampled", "turn_rewards",
    "faults",
  ]  # fmt: skip
  assert list(single) == [name for name in row if name not in ("sampled", "turn_rewards")]


@pytest.mark.parametrize(
  "lengths, want", [([2, 2], ["[7, 8]", "[7, 8]"]), ([[2, 0], [2, 0]], ["[7, 8]", None])]
)
def test_rows_say_what_the_teacher_was_asked(lengths, want):
  """By a prompt of the group, or by one of each completion; the second has none there."""
  lengths = np.array(lengths)
  tokens = np.broadcast_to(np.array([7, 8, 0]), (*lengths.shape, 3))
  r = dataclasses.replace(groups(2), ref_prompts=Prompts(tokens, lengths))
  rows = rows_of(r, 1, decode=lambda ids, skip_special=True: str(ids))
  assert [row["teacher_prompt"] for row in rows] == want


def test_a_token_has_its_numbers_before_and_after_the_update():
  r = groups(3)
  row = rows_of(r, 3)[4]  # of the third group: the numbers 16 to 19, with A = 0 to 3
  assert row["logprobs"] == [-16, -17, -18, -19] and row["entropies"] == [32, 34, 36, 38]
  assert row["logprobs_after"] == [-15.5, -16.5, -17.5, -18.5]
  assert row["ratios"] == [2.286, 2.429, 2.571, 2.714]  # four digits
  # an infinite bound is none, and nothing stands short of it
  assert row["bounds"] == [None, 1.2, None, None] and row["stands"] == [None, "past", None, None]
  json.dumps(row["bounds"], allow_nan=False)


def test_an_update_that_was_not_measured_has_no_after():
  (row, *_) = rows_of(groups(1), 1, measured=False)
  assert "entropies" in row
  assert not {name for name in row if "after" in name} | {"ratios", "bounds", "stands"} & set(row)


@pytest.mark.parametrize(
  ("advantage", "lower", "upper", "bound"),
  [
    (1, 0.8, 1.2, 1.2),
    (-1, 0.8, 1.2, 0.8),
    (0, 0.8, 1.2, None),
    (1, 0, np.inf, None),
    (-1, 0, 2, None),
  ],
)
def test_the_bound_of_a_ratio_is_that_of_the_sign_of_the_advantage(advantage, lower, upper, bound):
  found = sample_rows.bounds(*(np.array([x]) for x in (advantage, lower, upper)))
  assert sample_rows.digits(found) == [bound]


@pytest.mark.slow
@pytest.mark.parametrize("mu", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_run_writes_groups_whose_tokens_add_up(tmp_path, mu):
  """With one update the numbers before it come from the loss, with two from a pass of their own."""
  changes = {"steps": 1, "eval.problems": 0, "checkpoint.export": False, "learner.mu": mu}
  changes |= {"mesh.fsdp": 4, "mesh.group": 2, "log.measure_every": 1, "log.samples": 2}
  config = tiny_runs.config(changes)
  online.train(resolve(config), str(tmp_path))
  rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
  assert [row["sample"] for row in rows] == [0, 1, 2, 3] * 2
  assert len({(row["step"], row["group"], row["question"]) for row in rows}) == 2
  moved = 0
  for row in rows:
    for name in ("advantages", "logprobs", "entropies", "logprobs_after", "ratios", "bounds"):
      assert len(row[name]) == len(row["tokens"])
    before, after = np.array(row["logprobs"]), np.array(row["logprobs_after"])
    assert before.sum() == pytest.approx(row["logprob_before"], abs=2e-3)
    assert after.sum() == pytest.approx(row["logprob_after"], abs=2e-3)
    np.testing.assert_allclose(np.exp(after - before), row["ratios"], rtol=1e-3)
    moved += np.abs(after - before).sum()
    assert min(row["entropies"]) > 0
    for advantage, bound, stand in zip(row["advantages"], row["bounds"], row["stands"]):
      assert bound == ({1: 1.2, -1: 0.8, 0: None}[np.sign(advantage)])
      assert (stand is None) == (bound is None) and stand in (None, "short", "at", "past")
  assert moved > 0.1
