"""Solutions with labelled steps as groups, with labels at the steps' last tokens."""

import json
import types
from typing import Any

import numpy as np
import pytest

from grpo_jax.data.step_labels import Solution
from grpo_jax.errors import SettingError
from grpo_jax.loops.reward_data import steps as step_data
from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import make
from grpo_jax.tokenizer import making, steps
from grpo_jax.types import STOPPED, TRUNCATED


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
  "make", [lambda: making.train_bpe(["a"], 258), lambda: making.word_level(["a 是 one\n\n b"])]
)
def test_labels_are_where_the_steps_of_a_sample_end(make, complete):
  tokenizer = make()
  written = ["a 是\n", "one\n", "b" if complete else "b\n"]
  ids, labels = step_data.tokens_and_labels(
    Solution("", written, [1.0, None, 0.0], complete), tokenizer, tokenizer.eos_id
  )
  assert tokenizer.decode(ids) == "".join(written)
  ends = steps.step_ends(tokenizer.texts(ids), steps.pattern("line"))
  assert labels == {ends[0]: 1.0, ends[2]: 0.0} and (ids[-1] == tokenizer.eos_id) == complete


def test_a_token_that_ends_two_steps_has_the_least_of_their_labels():
  tokenizer = making.word_level(["x"])
  written = Solution("", ["x", "", "x"], [0.0, 1.0, None], False)
  assert step_data.tokens_and_labels(written, tokenizer, 0)[1] == {0: 0.0}


def shepherd(question: str, *signs: str) -> dict[str, str]:
  both = [
    question + "".join(f" Step {i}: a {end}\n" for i, end in enumerate(ends, 1))
    for ends in (["ки"] * len(signs), signs)
  ]
  return {"input": both[0].strip(), "label": both[1].strip()}


def labelled(tmp_path: Any, *records: dict, shards: int = 1, **settings: Any) -> step_data.Labelled:
  (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, records)))
  c = defaults.get_config()
  c.offline.steps, c.sampler.group, c.sampler.max_length, c.data.max_prompt_length = (
    str(tmp_path / "steps.jsonl"),
    2,
    40,
    3,
  )
  c.update_from_flattened_dict(settings)
  tokenizer = making.train_bpe(["Step 1: a\n"], 258)  # bytes
  layout = types.SimpleNamespace(size={"sample": shards}.get)
  model: Any = types.SimpleNamespace(
    tokenizer=tokenizer, render=tokenizer.encode, layout=layout, end=lambda: tokenizer.eos_id
  )
  return step_data.labelled(make(c), model)


@pytest.mark.parametrize(("short", "ended", "cut"), [(0, STOPPED, 0), (1, TRUNCATED, 1)])
def test_a_solution_that_just_fits_has_stopped(tmp_path, short, ended, cut):
  record = shepherd("q", "+", "-")
  whole = labelled(tmp_path, record).rollouts
  assert whole.ended[0, 0] == STOPPED and whole.given.sum() == 2
  found = labelled(tmp_path, record, **{"sampler.max_length": int(whole.lengths[0, 0]) - short})
  assert (found.rollouts.ended[0, 0], found.cut, found.rollouts.given.sum()) == (
    ended,
    cut,
    2 - cut,
  )


def test_a_file_becomes_groups(tmp_path):
  """Three solutions of q are two groups of at most two; what is too long is counted."""
  found = labelled(
    tmp_path,
    shepherd("q", "+", "-"),
    shepherd("r", "+"),
    shepherd("q", "-"),
    {"input": "no step", "label": "no step"},
    shepherd("q", "+", "+", "+", "-", "-"),
    shepherd("long?", "+"),
  )
  r = found.rollouts
  assert (found.without, found.too_long, found.cut) == (1, 1, 1)
  assert r.prompts.lengths.tolist() == [1, 1, 1, 0]
  assert r.lengths.tolist() == [[20, 10], [40, 0], [10, 0], [0, 0]]
  assert r.ended.tolist() == [
    [STOPPED, STOPPED],
    [TRUNCATED, TRUNCATED],
    [STOPPED, TRUNCATED],
    [TRUNCATED, TRUNCATED],
  ]
  assert r.rewards is not None and r.given is not None
  assert [np.flatnonzero(each).tolist() for each in r.given[0]] == [[9, 19], [9]]
  assert r.rewards[0][r.given[0]].tolist() == [1.0, 0.0, 0.0]
  assert np.flatnonzero(r.given[1, 0]).tolist() == [9, 19, 29, 39]
  assert r.rewards[1][r.given[1]].tolist() == [1.0, 1.0, 1.0, 0.0]


def test_groups_can_be_cut_over_the_mesh(tmp_path):
  found = labelled(tmp_path, shepherd("q", "+"), shepherd("r", "-"), shards=2)
  assert found.rollouts.lengths.tolist() == [[10, 0], [10, 0]]


def test_a_file_of_which_nothing_fits_is_refused(tmp_path):
  with pytest.raises(
    SettingError, match="no labelled step fits: 1 of 1 prompts are over data.max_prompt_length=1"
  ):
    labelled(tmp_path, shepherd("qq", "+"), **{"data.max_prompt_length": 1})
