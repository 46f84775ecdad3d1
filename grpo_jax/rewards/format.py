"""Rewards for the form of a completion, whatever its answer."""

import re

from grpo_jax.rewards.math import MARK, well_formed
from grpo_jax.types import STOPPED, Completion, Example

TAGS = ("<think>", "</think>", "<answer>", "</answer>")

_EQUATION = re.compile(r"= *[^\s=]*[0-9]")


def worked(example: Example, completion: Completion) -> float:
  """Returns 1 if it is well formed with `= number` on every line before the answer, else 0."""
  if not well_formed(example, completion):
    return 0.0
  lines = [line for line in completion.text.split("\n") if line.strip() and MARK not in line]
  return float(all(_EQUATION.search(line) for line in lines))


def think_tags(example: Example, completion: Completion) -> float:
  """Returns 1 for exactly `<think>...</think> <answer>...</answer>`, else 0.

  The format is DeepSeek-R1's (arXiv 2501.12948, section 2.2.2). Each tag occurs once. Only white
  space may stand before, between and after the two blocks. It takes linear time: a pattern with
  `.*?` for each block would try every pair of tags.
  """
  del example
  text = completion.text.strip()
  if completion.ended != STOPPED or any(text.count(tag) != 1 for tag in TAGS):
    return 0.0
  start, think_end, answer_start, end = (text.index(tag) for tag in TAGS)
  between = text[think_end + len("</think>") : answer_start]
  whole = start == 0 and end + len("</answer>") == len(text)
  return float(whole and start < think_end < answer_start < end and not between.strip())
