"""Greedy pass@1, and pass@k and maj@k from n samples, on a test split."""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.rewards.math import final_answer, number
from grpo_jax.sharding import Layout
from grpo_jax.tokenizer.reading import Tokenizer
from grpo_jax.types import Completion, Example


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Unbiased probability that one of k of n samples is right (Chen et al. 2021, eq. 1)."""
  return 1.0 if n - correct < k else 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(solved: Sequence[bool], completions: Sequence[Completion]) -> float:
  """Whether the most frequent final answer is right; answers that tie share the point.

  Args:
    solved: of each sample.
    completions: the samples; those without an answer do not vote.
  """
  votes: dict[Any, list[bool]] = collections.defaultdict(list)
  for right, completion in zip(solved, completions, strict=True):
    answer = final_answer(completion)
    if answer is not None:
      value = number(answer)
      votes[answer if value is None else value].append(bool(right))
  if not votes:
    return 0.0
  most = max(map(len, votes.values()))
  return float(np.mean([np.mean(v) for v in votes.values() if len(v) == most]))


def evaluate(
  sample: Callable,
  params: Any,
  examples: Sequence[Example],
  cfg: Any,
  *,
  layout: Layout,
  tokenizer: Tokenizer,
  render: Callable[[str], list[int]],
  solved: Callable[[Example, Completion], float],
  max_prompt_length: int,
  group: int,
  key: jax.Array,
  progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, float]:
  """Solves the first `cfg.problems` examples with `group` samples each.

  Args:
    sample: a sampler (`sampler.make_sampler`) of that group.
    params: the policy.
    cfg: the `eval` section.
    solved: reward that counts as right when it is at least 1.
    group: 1 (greedy): accuracy. More: pass@1 (the mean), pass@group and maj@group.
    progress: called with problems done and their number.

  Returns:
    Shares of all problems; prompts longer than allowed count as not solved.
  """
  rights, majorities, lengths, truncated = [], [], [], []
  total = min(cfg.problems or len(examples), len(examples))
  for step, rows in enumerate(loader.in_order(examples, cfg.batch, limit=total)):
    prompts, _ = loader.to_prompts(rows, render, max_prompt_length)
    out, _ = host.draw(sample, params, prompts, jax.random.fold_in(key, step), layout)
    for example, group_ in zip(rows, host.completions(out, tokenizer)):
      if example is None:
        continue
      if not group_[0].tokens:  # its prompt was too long
        rights.append([False] * len(group_))
        majorities.append(0.0)
        continue
      right = [solved(example, c) >= 1.0 for c in group_]
      rights.append(right)
      majorities.append(majority(right, group_))
      lengths += [len(c.tokens) for c in group_]
      truncated += [c.ended == 0 for c in group_]
    progress(len(rights), total)
  shared = {"length": float(np.mean(lengths or [0])), "truncated": float(np.mean(truncated or [0]))}
  if group == 1:
    return {"accuracy": float(np.mean(rights))} | shared
  return {
    "pass@1": float(np.mean(rights)),
    f"pass@{group}": float(np.mean([pass_at_k(group, sum(r), group) for r in rights])),
    f"maj@{group}": float(np.mean(majorities)),
  }
