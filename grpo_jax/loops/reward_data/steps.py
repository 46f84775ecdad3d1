"""Turns solutions with labelled steps (data/step_labels.py) into groups: `offline.data="steps"`."""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.data import loader
from grpo_jax.data.step_labels import Solution, read
from grpo_jax.errors import SettingError
from grpo_jax.packing import plan
from grpo_jax.setup import build
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Example, HostScored, ScoredRollouts


class Labelled(NamedTuple):
  """Content of a file with step labels."""

  rollouts: HostScored  # labels are rewards at the steps' last tokens
  without: int  # lines of the file that gave no solution
  too_long: int  # groups that were left out because of their prompt
  cut: int  # labelled steps beyond sampler.max_length


def labelled(experiment: Experiment, model: build.Model) -> Labelled:
  """Returns the solutions of `offline.steps` in groups of one question.

  A question with more than `sampler.group` solutions has several groups; smaller groups are filled
  with empty completions. A complete solution has an end token, which belongs to its last step, as
  in samples of a policy. A solution that is longer than `sampler.max_length` is cut, and counts as
  truncated, like one that is not complete.
  """
  solutions, without = read(experiment.offline.steps)
  groups = in_groups(solutions, experiment.sampler.group)
  shards = model.layout.size("sample")
  size, longest = -(-max(map(len, groups)) // shards) * shards, experiment.sampler.max_length
  questions = [Example(group[0].question, "", "", {}) for group in groups]
  prompts, too_long = loader.to_prompts(
    questions, model.render, experiment.data.max_prompt_length, experiment.data.on_long
  )
  shape = (len(groups), size, longest)
  tokens, lengths = np.zeros(shape, np.int32), np.zeros(shape[:2], np.int32)
  ended = np.full(shape[:2], TRUNCATED, np.int32)
  labels, cut, end = np.full(shape, np.nan, np.float32), 0, model.end()
  for p, group in enumerate(groups):
    if not prompts.lengths[p]:
      continue
    for g, solution in enumerate(group):
      ids, step_labels = tokens_and_labels(solution, model.tokenizer, end)
      if solution.complete and len(ids) <= longest:
        ended[p, g] = STOPPED
      lengths[p, g] = min(len(ids), longest)
      tokens[p, g, : lengths[p, g]] = ids[:longest]
      for token, label in step_labels.items():
        if token < longest:
          labels[p, g, token] = label
      cut += sum(token >= longest for token in step_labels)
  given, zeros = ~np.isnan(labels), np.zeros(shape, np.float32)
  rewards = np.nan_to_num(labels)
  components = (rewards.sum(2) / np.maximum(given.sum(2), 1))[..., None]
  rollouts = ScoredRollouts(
    plan.trim(prompts), tokens, lengths, ended, zeros, zeros, rewards, given, components
  )
  if not given.any():
    raise SettingError(
      f"offline.steps={experiment.offline.steps!r}: no labelled step fits: {too_long} of "
      f"{len(groups)} prompts are over "
      f"data.max_prompt_length={experiment.data.max_prompt_length}, {cut} steps lie beyond "
      f"sampler.max_length={longest}"
    )
  return Labelled(rollouts, without, too_long, cut)


def in_groups(solutions: Sequence[Solution], most: int) -> list[list[Solution]]:
  """Returns the solutions by question, in groups of at most `most`."""
  by_question: dict[str, list[Solution]] = {}
  for solution in solutions:
    by_question.setdefault(solution.question, []).append(solution)
  return [group[i : i + most] for group in by_question.values() for i in range(0, len(group), most)]


def tokens_and_labels(
  solution: Solution, tokenizer: Tokenizer, end: int
) -> tuple[list[int], dict[int, float]]:
  """Returns the tokens of a solution, and the label of each step by its last token's index.

  If one token ends several steps, it has their least label. A complete one ends with `end`.
  """
  ids, starts = tokenizer.encode_with_starts("".join(solution.steps))
  last = [
    bisect.bisect_left(starts, end) - 1 for end in itertools.accumulate(map(len, solution.steps))
  ]
  if solution.complete:
    ids = [*ids, end]
    last[-1] = len(ids) - 1
  labels: dict[int, float] = {}
  for token, label in zip(last, solution.labels):
    if label is not None:
      labels[token] = min(label, labels.get(token, label))
  return ids, labels
