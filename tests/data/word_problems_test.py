"""The families of word problems."""

import collections

from arithmetic_test import _examples

from grpo_jax.data import word_problems


def test_families_and_steps():
  examples = _examples("train")
  counts = collections.Counter(example.meta["family"] for example in examples)
  assert set(counts) == {problem.family for problem in word_problems.PROBLEMS} and len(counts) >= 8
  assert min(counts.values()) > 0.6 * len(examples) / len(counts)
  assert {example.meta["steps"] for example in examples} == {1, 2, 3, 4}
