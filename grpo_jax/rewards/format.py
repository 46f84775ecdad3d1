"""Rewards for the form of a completion, whatever its answer."""

import re

from grpo_jax.rewards.math import MARK, well_formed
from grpo_jax.types import STOPPED, Completion, Example

_EQUATION = re.compile(r"= *[^\s=]*[0-9]")
_TAGS = re.compile(r"\s*<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL)


def worked(example: Example, completion: Completion) -> float:
  """1 if it is well formed and every line before the answer works something out (`... = number`), else 0."""
  if not well_formed(example, completion):
    return 0.0
  lines = [line for line in completion.text.split("\n") if line.strip() and MARK not in line]
  return float(all(_EQUATION.search(line) for line in lines))


def think_tags(example: Example, completion: Completion) -> float:
  """1 for exactly `<think>...</think> <answer>...</answer>` (DeepSeek-R1, arXiv 2501.12948, section 2.2.2), else 0."""
  del example
  found = _TAGS.fullmatch(completion.text)
  inside = "" if found is None else found["think"] + found["answer"]
  tags = ("<think>", "</think>", "<answer>", "</answer>")
  return float(found is not None and completion.ended == STOPPED and not any(tag in inside for tag in tags))
