"""Labels of steps by Monte Carlo (Math-Shepherd, arXiv 2312.08935, section 3.3): what becomes of a
solution after each.

For each step of a sample, the policy writes `offline.continuations` continuations of the prompt and
the steps so far; those are a prompt of the sampler, computed once for all of its continuations. The
step's label is the share of them that reach the right answer (`offline.labels="soft"`), or 1 where
any does ("hard"). Right is what `eval.reward` says of the whole, within `sampler.max_length`
tokens.

After the last step of a sample that ended there is nothing to continue: its label is whether the
sample is right. The last step of one that was cut off is not known to be whole, and gets no label.
Samples that share their first steps share their labels, too.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.loops.groups import Scored
from grpo_jax.ops import preferences
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts, sampler
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.setup import build, scorers
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Example, Prompts, Rollouts

LABELS: dict[str, Callable] = {
  "soft": preferences.soft_labels,
  "hard": lambda successes, tries: preferences.hard_labels(successes),
}


class Prefix(NamedTuple):
  """The steps of a solution so far, to be continued."""

  prompt: int  # index in P
  tokens: tuple[int, ...]


class Labeller(NamedTuple):
  """What continues samples and judges what becomes of them. Only the programs of `sizes` change."""

  sample: Sampler  # of as many continuations as are asked for
  sizes: Sizes
  tokenizer: Tokenizer
  solved: Callable  # eval.reward
  deadline: float  # seconds that it may take
  labels: Callable  # (successes, tries) -> labels, arrays of one shape
  prompts: int  # that are continued at a time
  continuations: int
  max_length: int  # L


class Counts(NamedTuple):
  """What was labelled."""

  steps: int  # that got a label
  wrong: int  # of these, with a label of at most one half
  unfinished: int  # steps of samples that were cut off, which got none
  continued: int  # prefixes, each with all of its continuations
  faults: int  # completions on which eval.reward failed: they count as wrong


def make_labeller(config: ConfigDict, model: build.Model) -> Labeller:
  """What labels the samples of a run.

  Args:
    config: of the run.
    model: the policy that writes the continuations.

  Raises:
    SettingError: continuations that the mesh does not divide, sampler settings that cannot be.
  """
  group, shards = (
    config.offline.continuations,
    sampler.decode_layout(model.layout, config.sampler.tensor).size("sample"),
  )
  if group % shards:
    raise SettingError(
      f"offline.continuations={group}: use a multiple of {shards}, which mesh.group cuts them into"
    )
  sizes = build.sizes(config, model.layout)
  return Labeller(
    sampler.make_sampler(
      model.decoder, ConfigDict(config.sampler.to_dict() | {"group": group}), model.stop
    ),
    Sizes(sizes.most, sizes.layout, sizes.width + config.sampler.max_length, sizes.microbatches),
    model.tokenizer,
    scorers.eval_reward(config.eval).score,
    config.rewards.deadline,
    LABELS[config.offline.labels],
    config.eval.batch,
    group,
    config.sampler.max_length,
  )


def label(
  labeller: Labeller, params: Any, batch: Scored, key: jax.Array
) -> tuple[Rollouts, Counts]:
  """Returns the batch's rollouts with the labels of their steps as rewards, at the steps' last
  tokens.

  Args:
    labeller: how.
    params: of the policy that continues.
    batch: P groups, all numpy.
    key: of the noise of this batch.

  Raises:
    guard.Stopped: a signal came while the reward ran.
  """
  r = batch.rollouts
  ends = step_ends(r, labeller.tokenizer)
  asked = prefixes(r, ends)
  right, faults = outcomes(labeller, batch)
  successes: dict[Prefix, int] = {}
  for start in range(0, len(asked), labeller.prompts):
    some = asked[start : start + labeller.prompts]
    found, failed = continue_prefixes(labeller, params, batch, some, jax.random.fold_in(key, start))
    successes |= dict(zip(some, found))
    faults += failed
  of_prefix = as_labels(labeller, successes)
  labels = label_steps(r, ends, right, of_prefix)
  given = ~np.isnan(labels)
  unfinished = int(((r.ended != STOPPED) & (r.lengths > 0)).sum())
  wrong = int((labels[given] <= 0.5).sum())
  labelled = dataclasses.replace(r, rewards=np.nan_to_num(labels), given=given)
  return labelled, Counts(int(given.sum()), wrong, unfinished, len(asked), faults)


def step_ends(r: Rollouts, tokenizer: Tokenizer) -> list[list[list[int]]]:
  """Returns where the steps of each completion end, [P][G] lists of indices."""
  return [
    [tokenizer.step_ends(tokens[:length].tolist()) for tokens, length in zip(*group)]
    for group in zip(r.tokens, r.lengths)
  ]


def prefixes(r: Rollouts, ends: Sequence[Sequence[Sequence[int]]]) -> list[Prefix]:
  """Returns what is to be continued, each once: the steps so far after every step but a sample's
  last.

  They come in the order of their lengths with the prompt, so that those of a batch need little
  padding.
  """
  found = {
    Prefix(p, tuple(r.tokens[p, g, : end + 1].tolist()))
    for p, group in enumerate(ends)
    for g, of_sample in enumerate(group)
    for end in of_sample[:-1]
  }
  return sorted(found, key=lambda each: (r.prompts.lengths[each.prompt] + len(each.tokens), each))


def prefix_prompts(r: Rollouts, some: Sequence[Prefix], prompts: int) -> Prompts:
  """Returns the prompts of the sampler, prompt and steps so far side by side; those that are
  missing are empty.
  """
  tokens = np.zeros((prompts, r.prompts.tokens.shape[1] + r.tokens.shape[2]), np.int32)
  lengths = np.zeros(prompts, np.int32)
  for i, prefix in enumerate(some):
    whole = [*r.prompts.tokens[prefix.prompt, : r.prompts.lengths[prefix.prompt]], *prefix.tokens]
    tokens[i, : len(whole)], lengths[i] = whole, len(whole)
  return Prompts(tokens, lengths)


def continue_prefixes(
  labeller: Labeller, params: Any, batch: Scored, some: Sequence[Prefix], key: jax.Array
) -> tuple[list[int], int]:
  """Returns how many continuations of each prefix are right, and on how many the reward failed.

  Each process judges its own share of the continuations.
  """
  prompts = prefix_prompts(batch.rollouts, some, labeller.prompts)
  drawn, _ = rollouts.draw(labeller.sample, params, prompts, key, labeller.sizes)
  examples = [batch.examples[prefix.prompt] for prefix in some]
  shares = hosts.gather(hosts.together(lambda: judge(labeller, drawn, examples, some)))
  right = np.sum([right for right, _ in shares], axis=0)
  return right.tolist(), sum(failed for _, failed in shares)


def judge(
  labeller: Labeller, drawn: Rollouts, examples: Sequence[Example | None], some: Sequence[Prefix]
) -> tuple[np.ndarray, int]:
  """Returns how many of this process's continuations are right, by prefix, and on how many the
  reward failed.
  """
  tokens, own = hosts.share(drawn.tokens)
  right, failed = np.zeros(len(some), np.int32), 0
  with Guard(labeller.deadline) as call:
    for i, (example, prefix) in enumerate(zip(examples, some)):
      for g in np.flatnonzero(own[i]):
        whole = np.array([*prefix.tokens, *tokens[i, g, : drawn.lengths[i, g]]])
        ended = drawn.ended[i, g] if len(whole) <= labeller.max_length else TRUNCATED
        within = min(len(whole), labeller.max_length)  # what lies beyond was not written in time
        completion = rollouts.completion(whole, within, ended, labeller.tokenizer)
        solved, message = policy.is_right(call, labeller.solved, example, completion)
        right[i] += solved
        failed += bool(message)
  return right, failed


def outcomes(labeller: Labeller, batch: Scored) -> tuple[np.ndarray, int]:
  """Returns whether each sample is right, [P, G] bool, and on how many the reward failed."""
  right, failed = np.zeros(batch.rollouts.lengths.shape, bool), 0
  with Guard(labeller.deadline) as call:
    for p, group in enumerate(rollouts.completions(batch.rollouts, labeller.tokenizer)):
      for g, completion in enumerate(group):
        if batch.examples[p] is not None and completion.tokens:
          right[p, g], message = policy.is_right(
            call, labeller.solved, batch.examples[p], completion
          )
          failed += bool(message)
  return right, failed


def as_labels(labeller: Labeller, successes: dict[Prefix, int]) -> dict[Prefix, float]:
  """Returns the label of each prefix's last step."""
  counts = np.array([*successes.values()], np.float32)
  labels = labeller.labels(counts, np.full_like(counts, labeller.continuations))
  return dict(zip(successes, np.asarray(labels).tolist()))


def label_steps(
  r: Rollouts,
  ends: Sequence[Sequence[Sequence[int]]],
  right: np.ndarray,
  of_prefix: dict[Prefix, float],
) -> np.ndarray:
  """Returns the label of each step at its last token, [P, G, L] float32, and NaN everywhere else.

  Args:
    r: the samples.
    ends: where their steps end.
    right: [P, G], whether a sample is right: the label of its last step, where it ended.
    of_prefix: the labels of all other steps.
  """
  labels = np.full(r.tokens.shape, np.nan, np.float32)
  for p, group in enumerate(ends):
    for g, of_sample in enumerate(group):
      for end in of_sample[:-1]:
        labels[p, g, end] = of_prefix[Prefix(p, tuple(r.tokens[p, g, : end + 1].tolist()))]
      if of_sample and r.ended[p, g] == STOPPED:
        labels[p, g, of_sample[-1]] = right[p, g]
  return labels
