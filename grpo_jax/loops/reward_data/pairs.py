"""Makes pairs [chosen, rejected] of completions, from samples or from a user's file.

A file has one JSON object on each line, with the texts `prompt`, `chosen` and `rejected` (the names
that TRL uses; its conversations, which are lists of messages, are not read). The prompt is rendered
like every question (`data.template`, `data.chat`), and each completion gets an end token.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.data import jsonl, loader
from grpo_jax.data.loader import Item
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored, failed, select
from grpo_jax.ops.advantages import totals
from grpo_jax.packing import plan
from grpo_jax.rewards.attempts import REQUIRED
from grpo_jax.setup import build
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import (
  STOPPED,
  TRUNCATED,
  Example,
  HostRollouts,
  Prompts,
  Rollouts,
  ScoredRollouts,
)


class Pair(NamedTuple):
  """A line of a file."""

  prompt: str
  chosen: str
  rejected: str


# -- of samples


def with_requirement(collector: Collector, experiment: Experiment) -> Collector:
  """Returns the collector with the reward `offline.require`, if set, as a component of weight 0."""
  if experiment.requirement is None:
    return collector
  return collector._replace(rewards=[*collector.rewards, (REQUIRED, experiment.requirement, 0.0)])


def of_samples(
  batch: Scored, seed: int, complete: bool = False, required: int | None = None
) -> Scored:
  """Returns a best and a worst sample, [chosen, rejected], of each group whose totals differ.

  A sample on which a reward failed is neither.

  Args:
    batch: scored samples.
    seed: of the choice among equals.
    complete: take only samples that stopped.
    required: the place of the component of `with_requirement`, which is followed by those of an
      environment and of reward models: only samples where it is above 0 are taken, and the pairs
      are without it. None: there is none.
  """
  r = batch.rollouts
  eligible = r.given.any(axis=2) & ~failed(batch)  # [P, G]
  components = r.components
  if complete:
    eligible &= r.ended == STOPPED
  if required is not None:
    admitted = components[..., required] > 0
    components = np.delete(components, required, axis=2)
    eligible &= admitted & ~np.isnan(components).all(axis=2)
  rng = np.random.default_rng(seed)
  total = totals(r.rewards, r.given)
  high, low = np.where(eligible, total, -np.inf), np.where(eligible, total, np.inf)
  keep = np.flatnonzero(high.max(1) > low.min(1))
  best = [int(rng.choice(np.flatnonzero(row == row.max()))) for row in high[keep]]
  worst = [int(rng.choice(np.flatnonzero(row == row.min()))) for row in low[keep]]
  index = np.array([best, worst], np.int32).reshape(2, -1).T  # [P, 2]
  arrays = vars(r) | {"components": components}
  chosen = {
    name: x[keep[:, None], index]
    for name, x in arrays.items()
    if x is not None and name != "prompts"
  }
  batch = select(batch, keep.tolist())
  return batch._replace(rollouts=ScoredRollouts(batch.rollouts.prompts, **chosen), faults=[])


def divide(prompts: Sequence[Hashable], held_out: int) -> tuple[list[int], list[int]]:
  """Divides groups so that no prompt is on both sides.

  Args:
    prompts: identifies the prompt of each group.
    held_out: the number of different prompts that are held out, the first ones.

  Returns:
    The first place of each held-out prompt, and the places of all groups of other prompts.
  """
  first: dict[Hashable, int] = {}
  for place, prompt in enumerate(prompts):
    if len(first) < held_out:
      first.setdefault(prompt, place)
  rest = [place for place, prompt in enumerate(prompts) if prompt not in first]
  return list(first.values()), rest


def prompts_of(batch: Scored) -> list[bytes]:
  """Returns the tokens of each prompt, which identify it."""
  p = batch.rollouts.prompts
  return [np.ascontiguousarray(row[:n]).tobytes() for row, n in zip(p.tokens, p.lengths)]


# -- of a file


class InOrder(Generic[Item]):
  """Batches of items whose order and position are those of a `loader.Batches`."""

  order: loader.Batches[Item]

  def get_state(self) -> Json:
    """Returns the position, as JSON."""
    return self.order.get_state()

  def set_state(self, state: Json) -> None:
    """Resumes at a position that `get_state` returned."""
    self.order.set_state(state)

  def contents(self) -> dict[str, str]:
    """Returns a description of the data; see `Batches.contents`."""
    return self.order.contents()


class FromFile(InOrder[Pair]):
  """Yields batches of the pairs of `offline.pairs` without end, in the order of `data.shuffle`.

  `held_out` are the pairs of `offline.held_out` of its prompts, drawn by the seed, which are in no
  batch.
  """

  def __init__(self, experiment: Experiment, model: build.Model):
    """Reads the file."""
    self.experiment, self.model = experiment, model
    in_file = read(experiment.offline.pairs)
    rows = [in_file[i] for i in np.random.default_rng(experiment.seed).permutation(len(in_file))]
    first, rest = divide([row.prompt for row in rows], experiment.offline.held_out)
    if len(first) < experiment.offline.held_out or not rest:
      prompts = len({row.prompt for row in rows})
      raise SettingError(
        f"offline.held_out={experiment.offline.held_out}: {experiment.offline.pairs} has {prompts} "
        f"prompts; use at most {prompts - 1}"
      )
    held = {rows[place].prompt for place in first}
    self.held_out = [row for row in rows if row.prompt in held]
    in_order = rows if experiment.data.shuffle else in_file
    training = [row for row in in_order if row.prompt not in held]
    few = training[: build.FIRST_PROMPTS]
    if not self.rollouts(few).lengths.any():
      raise SettingError(
        f"offline.pairs={experiment.offline.pairs!r}: its first {len(few)} pairs are all longer "
        f"than data.max_prompt_length={experiment.data.max_prompt_length} or "
        f"sampler.max_length={experiment.sampler.max_length}; use larger ones"
      )
    self.order = loader.Batches(
      [training],
      prompts=experiment.data.prompts,
      seed=experiment.seed,
      shuffle=experiment.data.shuffle,
    )

  def __next__(self) -> HostRollouts:
    return self.rollouts(next(self.order))

  def rollouts(self, rows: Sequence[Pair]) -> HostRollouts:
    """Returns pairs as groups of two; a pair with a text that is too long is an empty group."""
    d, longest = self.experiment.data, self.experiment.sampler.max_length
    examples = [Example(row.prompt, "", "", {}) for row in rows]
    prompts, _ = loader.to_prompts(examples, self.model.render, d.max_prompt_length, d.on_long)
    texts = [
      (row.chosen, row.rejected) if prompts.lengths[p] else (None, None)
      for p, row in enumerate(rows)
    ]
    tokens, lengths, ended = encoded(texts, self.model, longest)
    fits = (ended == STOPPED).all(axis=1)
    tokens, lengths = tokens * fits[:, None, None], lengths * fits[:, None]
    prompts = Prompts(prompts.tokens * fits[:, None], prompts.lengths * fits)
    zeros = np.zeros(tokens.shape, np.float32)
    return Rollouts(plan.trim(prompts), tokens, lengths, ended, zeros, zeros)


def length_metrics(experiment: Experiment, batch: HostRollouts) -> dict[str, int]:
  """Returns `pairs_too_long`, the number of empty groups in a batch of `offline.pairs`."""
  return (
    {"pairs_too_long": int((batch.lengths[:, 0] == 0).sum())} if experiment.offline.pairs else {}
  )


def read(path: str) -> list[Pair]:
  """Returns the pairs of a file, in its order."""
  file = storage.place(path)
  if not file.is_file():
    raise SettingError(
      f"offline.pairs={path!r}: no such file; give one with {', '.join(Pair._fields)} on each "
      "line, as JSON"
    )
  return [
    Pair(*(jsonl.text(record, name, where) for name in Pair._fields))
    for record, where in jsonl.read(file)
  ]


def encoded(
  texts: Sequence[Sequence[str | None]], model: build.Model, longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns groups of texts as completions; each has its end token unless it is cut.

  Args:
    texts: P groups of G texts; None is a completion of length 0.
    model: its tokenizer is used.
    longest: L.

  Returns:
    Tokens `[P, G, L]`, lengths `[P, G]`, and how each ended `[P, G]`, all int32.
  """
  shape = (len(texts), len(texts[0]))
  tokens, lengths = np.zeros((*shape, longest), np.int32), np.zeros(shape, np.int32)
  ended, end = np.full(shape, TRUNCATED, np.int32), model.end()
  for place in np.ndindex(*shape):
    text = texts[place[0]][place[1]]
    if text is None:
      continue
    ids = [*model.tokenizer.encode(text), end]
    ended[place] = STOPPED if len(ids) <= longest else TRUNCATED
    ids = ids[:longest]
    tokens[place][: len(ids)], lengths[place] = ids, len(ids)
  return tokens, lengths, ended
