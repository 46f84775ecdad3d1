"""Makes the rows of samples.jsonl: whole groups of completions, with numbers of each token."""

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.loops.collect import Collector
from grpo_jax.loops.groups import Scored, failed
from grpo_jax.loops.learner import Learned
from grpo_jax.loops.sample_metrics import disagreement
from grpo_jax.ops.advantages import totals
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build
from grpo_jax.types import STOPPED, Array


def sample_rows(
  batch: Scored, learned: Learned, limit: int, collector: Collector, model: build.Model
) -> list[Json]:
  """Returns every completion of up to `limit` groups as samples.jsonl keeps them.

  `group` is the index of the prompt in the batch and `sample` that of the completion in its group.
  """
  r, trace = batch.rollouts, learned.trace
  chosen = choose_groups(batch, limit)
  if not chosen:
    return []
  prompts, samples = r.lengths.shape
  # one size for all steps, so that one program is compiled
  fetched = [*chosen, *chosen[:1] * (min(limit, prompts) - len(chosen))]
  places = [(p, g) for p in fetched for g in range(samples)]
  tokens, advantages, logprobs = rollouts.rows(
    model.layout, (r.tokens, trace.advantages, trace.logprobs), places
  )
  assert logprobs is not None  # a reward model alone has none
  faults = {
    (fault.prompt, fault.sample): f"{fault.name}: {fault.message}" for fault in batch.faults
  }
  total = totals(r.rewards, r.given)
  gaps = disagreement(batch, collector.names, collector.learned, collector.rule)
  rows = []
  for n, (p, g) in enumerate(places[: len(chosen) * samples]):
    if not r.lengths[p, g]:  # only fills the batch
      continue
    example = batch.examples[p]
    assert example is not None  # a prompt that only fills the batch has no completion
    own = None if r.sampled is None else r.sampled[p, g]
    ids, text = rollouts.written(tokens[n], r.lengths[p, g], r.ended[p, g], model.tokenizer, own)
    real = slice(len(ids))
    row = {
      "group": p,
      "sample": g,
      "question": example.question,
      "completion": text,
      "answer": example.answer,
      "reward": total[p, g],
      "advantage": advantages[n, real].mean(where=True if own is None else own[real]),
      "rewards": {name: r.components[p, g, i] for i, name in enumerate(collector.names)},
      "ended": "stopped" if r.ended[p, g] == STOPPED else "truncated",
      "tokens": [model.tokenizer.text(token) for token in ids],
      "advantages": decimals(advantages[n, real]),
      "logprobs": decimals(logprobs[n, real]),
    }
    if own is not None:
      row["tokens"] = model.tokenizer.texts(ids)  # joined they are a turn's text
      row["sampled"] = own[real].tolist()
      indices = np.flatnonzero(r.given[p, g]).tolist()
      row["turn_rewards"] = [[i, round(float(r.rewards[p, g, i]), 4)] for i in indices]
    if gaps is not None:
      row["disagreement"] = gaps[p, g]
    if learned.moved:
      before, after = learned.moved
      row["logprob_before"] = round(float(before[p, g]), 4)
      row["logprob_after"] = round(float(after[p, g]), 4)
    if (p, g) in faults:
      row["faults"] = faults[p, g]
    rows.append(row)
  return rows


def choose_groups(batch: Scored, limit: int) -> list[int]:
  """Returns the indices of up to `limit` groups that a reader learns most from.

  Groups in which a reward failed come first, then those whose rewards differ, each in the order of
  the batch. Groups without a completion, which only fill the batch, are left out.
  """
  r = batch.rollouts
  real = r.lengths > 0
  total = np.nan_to_num(totals(r.rewards, r.given))
  most = np.where(real, total, -np.inf).max(axis=1)
  least = np.where(real, total, np.inf).min(axis=1)
  faulty = failed(batch).any(axis=1)
  order = np.lexsort((most <= least, ~faulty))
  return [int(p) for p in order if real[p].any()][:limit]


def decimals(numbers: Array | np.ndarray) -> list[float]:
  """Returns the numbers [L], rounded to four decimals."""
  return [round(float(x), 4) for x in numbers]
