"""Rewards that compare the completions of a group and return a number for each."""

from grpo_jax.rewards.math import answer_correct
from grpo_jax.types import Completion, Example


def shortest_correct(example: Example, completions: list[Completion]) -> list[float]:
  """Returns the length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3) of each completion.

  With lambda = 0.5 - (length - shortest) / (longest - shortest), over all completions of the group,
  a right one (`math.answer_correct`) gets lambda and a wrong one min(0, lambda): shorter is better
  among right ones, and wrong ones gain nothing by being short. It is 0 for all if all are equally
  long. Lengths are in tokens, the stop token included. Combine it with a reward for right answers
  and a smaller weight: a right completion that is long gets less than 0.

  Raises:
    ValueError: the example's own answer is no number.
  """
  right = [answer_correct(example, completion) == 1.0 for completion in completions]
  lengths = [len(completion.tokens) for completion in completions]
  shortest, longest = min(lengths), max(lengths)
  if shortest == longest:
    return [0.0] * len(lengths)
  rewards = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
  return [value if solved else min(0.0, value) for value, solved in zip(rewards, right)]
