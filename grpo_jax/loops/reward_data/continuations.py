"""Labels steps by Monte Carlo continuations (Math-Shepherd, arXiv 2312.08935, section 3.3).

For each step of a sample, the policy writes `offline.continuations` continuations of the prompt and
the steps so far. The label of the step is the share of them that reach the right answer
(`offline.labels="soft"`), or 1 if any does ("hard"). `eval.reward` decides what is right, within
`sampler.max_length` tokens of the whole.

The steps so far are a part of the prompt, which a group shares. As samples that have begun
(sampling/begun.py) each continuation would have a copy of them, and its own pass over it.

After the last step of a sample that ended there is nothing to continue: its label is whether the
sample is right. The last step of a truncated sample may be incomplete and gets no label. Samples
that share their first steps share the labels of these.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.loops.groups import Scored, with_rewards
from grpo_jax.models.decoder import Params
from grpo_jax.ops import preferences
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts, sampler
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.setup import build
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import (
  STOPPED,
  TRUNCATED,
  Completion,
  Example,
  HostRollouts,
  HostScored,
  KnownRollouts,
  Prompts,
)

# (successes, tries) -> labels, arrays of one shape
Labels = Callable[[jax.Array, jax.Array], jax.Array]
LABELS: dict[str, Labels] = {
  "soft": preferences.soft_labels,
  "hard": lambda successes, tries: preferences.hard_labels(successes),
}


class Prefix(NamedTuple):
  """Beginning of a solution, to be continued after whole steps."""

  prompt: int  # index in P
  tokens: tuple[int, ...]


class Labeller(NamedTuple):
  """Continues samples and judges the results. Only the programs of `sizes` change."""

  sample: Sampler  # of a group of continuations
  sizes: Sizes
  tokenizer: Tokenizer
  solved: Callable[[Example, Completion], float]  # eval.reward
  deadline: float  # seconds for one completion
  labels: Labels
  prompts: int  # prefixes continued at a time
  continuations: int
  max_length: int  # L


class Counts(NamedTuple):
  """Counts of what was labelled."""

  steps: int  # steps with a label
  wrong: int  # of these, with a label of at most one half
  unfinished: int  # last steps of truncated samples, which have no label
  continued: int  # prefixes, each with all of its continuations
  faults: int  # completions on which eval.reward failed: they count as wrong


def make_labeller(experiment: Experiment, model: build.Model) -> Labeller:
  """Makes the labeller of samples; `model` is the policy that writes the continuations."""
  layout = sampler.decode_layout(model.layout, experiment.sampler.tensor)
  group, shards = experiment.offline.continuations, layout.size("sample")
  if group % shards:
    raise SettingError(
      f"offline.continuations={group}: use a multiple of {shards}, the shards that mesh.group makes"
    )
  sizes = build.sizes(experiment, model.layout)
  return Labeller(
    sampler.make_sampler(
      model.decoder,
      dataclasses.replace(experiment.sampler, group=group),
      model.stop,
      model.stop_table,
    ),
    Sizes(
      sizes.most, sizes.layout, sizes.width + experiment.sampler.max_length, sizes.microbatches
    ),
    model.tokenizer,
    experiment.eval_reward.score,
    experiment.rewards.deadline,
    LABELS[experiment.offline.labels],
    experiment.eval.batch,
    group,
    experiment.sampler.max_length,
  )


def label(
  labeller: Labeller, params: Params, batch: Scored, key: jax.Array
) -> tuple[HostScored, Counts]:
  """Returns the rollouts with the labels of steps as rewards at the steps' last tokens.

  Args:
    labeller: continues and judges.
    params: of the policy that continues.
    batch: P groups on the host.
    key: of the noise of this batch.
  """
  r = batch.rollouts
  ends = step_ends(r, labeller.tokenizer)
  asked = prefixes(r, ends)
  right, faults = outcomes(labeller, batch)
  successes: dict[Prefix, int] = {}
  for start in range(0, len(asked), labeller.prompts):
    some = asked[start : start + labeller.prompts]
    right_counts, failed = continue_prefixes(
      labeller, params, batch, some, jax.random.fold_in(key, start)
    )
    successes |= dict(zip(some, right_counts))
    faults += failed
  labels = label_steps(r, ends, right, as_labels(labeller, successes))
  given = ~np.isnan(labels)
  unfinished = int(((r.ended != STOPPED) & (r.lengths > 0)).sum())
  wrong = int((labels[given] <= 0.5).sum())
  labelled = with_rewards(r, np.nan_to_num(labels), given, r.components)
  return labelled, Counts(int(given.sum()), wrong, unfinished, len(asked), faults)


def step_ends(r: HostRollouts, tokenizer: Tokenizer) -> list[list[list[int]]]:
  """Returns the indices of the last tokens of steps, `[P][G]` lists."""
  return [
    [
      rollouts.step_ends(tokens[:length].tolist(), ended, tokenizer)
      for tokens, length, ended in zip(*group)
    ]
    for group in zip(r.tokens, r.lengths, r.ended)
  ]


def prefixes(r: HostRollouts, ends: Sequence[Sequence[Sequence[int]]]) -> list[Prefix]:
  """Returns what is to be continued, each once: the beginnings up to every step but the last.

  They are sorted by their lengths with the prompt, so that those of a batch need little padding.
  """
  unique = {
    Prefix(p, tuple(r.tokens[p, g, : end + 1].tolist()))
    for p, group in enumerate(ends)
    for g, sample_ends in enumerate(group)
    for end in sample_ends[:-1]
  }
  return sorted(unique, key=lambda x: (r.prompts.lengths[x.prompt] + len(x.tokens), x))


def prefix_prompts(r: HostRollouts, some: Sequence[Prefix], prompts: int) -> Prompts:
  """Returns the prompts of the sampler: prompt and steps, filled up with empty ones."""
  tokens = np.zeros((prompts, r.prompts.tokens.shape[1] + r.tokens.shape[2]), np.int32)
  lengths = np.zeros(prompts, np.int32)
  for i, prefix in enumerate(some):
    whole = [*r.prompts.tokens[prefix.prompt, : r.prompts.lengths[prefix.prompt]], *prefix.tokens]
    tokens[i, : len(whole)], lengths[i] = whole, len(whole)
  return Prompts(tokens, lengths)


def continue_prefixes(
  labeller: Labeller, params: Params, batch: Scored, some: Sequence[Prefix], key: jax.Array
) -> tuple[list[int], int]:
  """Returns the number of right continuations of each prefix, and of failures of the reward.

  Each process judges its own share of the continuations.
  """
  prompts = prefix_prompts(batch.rollouts, some, labeller.prompts)
  drawn, _ = rollouts.draw(labeller.sample, params, prompts, key, labeller.sizes)
  examples = [batch.examples[prefix.prompt] for prefix in some]
  shares = hosts.gather(hosts.together(lambda: judge(labeller, drawn, examples, some)))
  right = np.sum([right for right, _ in shares], axis=0)
  return right.tolist(), sum(failed for _, failed in shares)


def judge(
  labeller: Labeller,
  drawn: KnownRollouts,
  examples: Sequence[Example | None],
  some: Sequence[Prefix],
) -> tuple[np.ndarray, int]:
  """Returns the number of this process's right continuations by prefix, and of failures."""
  tokens, is_mine = hosts.share(drawn.tokens)
  right, failed = np.zeros(len(some), np.int32), 0
  with Guard(labeller.deadline) as call:
    for i, (example, prefix) in enumerate(zip(examples, some)):
      assert example is not None  # a prefix is of a sample
      for g in np.flatnonzero(is_mine[i]):
        whole = np.array([*prefix.tokens, *tokens[i, g, : drawn.lengths[i, g]]])
        ended = drawn.ended[i, g] if len(whole) <= labeller.max_length else TRUNCATED
        within = min(len(whole), labeller.max_length)  # tokens beyond it were not written in time
        # a stop text that began in the prefix ended no sampling, and ends the text all the same
        if labeller.tokenizer.tokens_before_stop(whole[:within].tolist()) is not None:
          ended = STOPPED
        completion = rollouts.completion(whole, within, ended, labeller.tokenizer)
        solved, message = policy.is_right(call, labeller.solved, example, completion)
        right[i] += solved
        failed += bool(message)
  return right, failed


def outcomes(labeller: Labeller, batch: Scored) -> tuple[np.ndarray, int]:
  """Returns whether each sample is right, [P, G] bool, and the number of failures of the reward."""
  right, failed = np.zeros(batch.rollouts.lengths.shape, bool), 0
  with Guard(labeller.deadline) as call:
    for p, group in enumerate(rollouts.completions(batch.rollouts, labeller.tokenizer)):
      example = batch.examples[p]
      for g, completion in enumerate(group):
        if example is not None and completion is not None and completion.tokens:
          right[p, g], message = policy.is_right(call, labeller.solved, example, completion)
          failed += bool(message)
  return hosts.gather((right, failed))[0]  # all learn from the same, though one host's reward fails


def as_labels(labeller: Labeller, successes: dict[Prefix, int]) -> dict[Prefix, float]:
  """Returns the label of each prefix's last step."""
  counts = jnp.array([*successes.values()], jnp.float32)
  labels = labeller.labels(counts, jnp.full_like(counts, labeller.continuations))
  return dict(zip(successes, np.asarray(labels).tolist()))


def label_steps(
  r: HostRollouts,
  ends: Sequence[Sequence[Sequence[int]]],
  right: np.ndarray,
  labels_of_prefixes: dict[Prefix, float],
) -> np.ndarray:
  """Returns the label of each step at its last token, [P, G, L] float32, NaN everywhere else.

  Args:
    r: the samples.
    ends: where their steps end.
    right: [P, G], whether a sample is right: the label of its last step, if it stopped.
    labels_of_prefixes: the labels of all other steps.
  """
  labels = np.full(r.tokens.shape, np.nan, np.float32)
  for p, group in enumerate(ends):
    for g, sample_ends in enumerate(group):
      for end in sample_ends[:-1]:
        prefix = Prefix(p, tuple(r.tokens[p, g, : end + 1].tolist()))
        labels[p, g, end] = labels_of_prefixes[prefix]
      if sample_ends and r.ended[p, g] == STOPPED:
        labels[p, g, sample_ends[-1]] = right[p, g]
  return labels
