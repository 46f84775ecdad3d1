"""Rewards for form."""

import time

import pytest
from answered import completion, example

from grpo_jax.rewards import format
from grpo_jax.types import TRUNCATED


@pytest.mark.parametrize(
  "text, reward",
  [
    ("Ann has 48 / 2 = 24\nIn all 48+24=$72.\n#### 72", 1.0),
    ("Ann has 24\n#### 24", 0.0),
    ("Ann has 48 / 2 = 24\nso\n#### 24", 0.0),
    ("48 / 2 = 24", 0.0),
  ],
)
def test_worked(text, reward):
  assert format.worked(example(), completion(text)) == reward


@pytest.mark.parametrize(
  "text, reward",
  [
    ("<think>a\nb</think>\n<answer>1</answer>", 1.0),
    ("<think></think><answer></answer>\n", 1.0),
    ("so <think>a</think><answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</answer> so", 0.0),
    ("<think>a</think><think>b</think><answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</answer><answer>2</answer>", 0.0),
    ("<answer>1</answer><think>a</think>", 0.0),
    (" \n\u2003<think>a</think>\u00a0<answer>1</answer>\t", 1.0),
    ("<think>a</think>, <answer>1</answer>", 0.0),
    ("<think>a</think><answer>1</think></answer>", 0.0),
    ("<think>a<answer>1</think></answer>", 0.0),
    ("<think>a<answer></think>1</answer>", 0.0),
    ("</think><think><answer>1</answer>", 0.0),
    ("<think>a <th</think><answer>ink> 1</answer>", 1.0),  # no tag across the two blocks
    ("", 0.0),
  ],
)
def test_think_tags(text, reward):
  assert format.think_tags(example(), completion(text)) == reward
  assert format.think_tags(example(), completion(text, TRUNCATED)) == 0.0


@pytest.mark.parametrize(
  "text",
  [
    "<think></think>" * 21_000,
    "<think></think><answer>" * 14_000,
    "<think>" + "</think> <answer>" * 19_000,
    "<think>" + "</think>" + " " * 320_000,
    "<think>" + "<" * 320_000 + "</answer>",
  ],
)
def test_think_tags_takes_no_longer_than_the_text(text):
  """A pattern that tries every pair of tags took 74 seconds for texts of this length."""
  start = time.perf_counter()
  assert format.think_tags(example(), completion(text)) == 0.0
  assert time.perf_counter() - start < 1.0
