"""Makes the rows of samples.jsonl: whole groups of completions, with numbers of each token."""

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.learning.learn import Trace
from grpo_jax.learning.movement import AT_BOUND, NO_BOUND, PAST_BOUND, SHORT, Movement
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored, failed
from grpo_jax.loops.learner import Learned
from grpo_jax.loops.sample_metrics import disagreement
from grpo_jax.ops.advantages import totals
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build
from grpo_jax.types import STOPPED, Array, Prompts

Numbers = Array | np.ndarray  # [L]
# Where the ratio of a token stands after the update, in samples.jsonl; None: it has no bound.
STANDS = {SHORT: "short", AT_BOUND: "at", PAST_BOUND: "past", NO_BOUND: None}


def sample_rows(
  batch: Scored, learned: Learned, limit: int, collector: Collector, model: build.Model
) -> list[Json]:
  """Returns every completion of up to `limit` groups as samples.jsonl keeps them.

  `group` is the index of the prompt in the batch and `sample` that of the completion in its group.
  """
  r = batch.rollouts
  chosen = choose_groups(batch, limit)
  if not chosen:
    return []
  prompts, samples = r.lengths.shape
  # one size for all steps, so that one program is compiled
  fetched = [*chosen, *chosen[:1] * (min(limit, prompts) - len(chosen))]
  places = [(p, g) for p in fetched for g in range(samples)]
  moved = learned.moved and learned.moved._replace(metrics={})  # the rest is of completions
  tokens, trace, moved = rollouts.rows(model.layout, (r.tokens, learned.trace, moved), places)
  faults: dict[tuple[int, int], list[str]] = {}
  for fault in batch.faults:
    told = faults.setdefault((fault.prompt, fault.sample), [])
    told.append(f"{fault.name}: {fault.message}")
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
      "advantage": trace.advantages[n, real].mean(where=True if own is None else own[real]),
      "rewards": {name: r.components[p, g, i] for i, name in enumerate(collector.names)},
      "ended": "stopped" if r.ended[p, g] == STOPPED else "truncated",
      "tokens": model.tokenizer.texts(ids),  # joined they are the text
    } | numbers(trace, moved, n, len(ids))
    if own is not None:
      row["sampled"] = own[real].tolist()
      indices = np.flatnonzero(r.given[p, g]).tolist()
      row["turn_rewards"] = [[i, round(float(r.rewards[p, g, i]), 4)] for i in indices]
    if r.ref_prompts is not None:
      row["teacher_prompt"] = teacher_prompt(r.ref_prompts, p, g, model)
    if gaps is not None:
      row["disagreement"] = gaps[p, g]
    if (p, g) in faults:
      row["faults"] = "; ".join(faults[p, g])
    rows.append(row)
  return rows


def teacher_prompt(prompts: Prompts, p: int, g: int, model: build.Model) -> str | None:
  """Returns what the teacher was asked for a completion; None: it has no teacher."""
  place = (p, g)[: prompts.lengths.ndim]
  ids = prompts.tokens[place][: prompts.lengths[place]]
  return model.tokenizer.decode(ids.tolist(), skip_special=False) if len(ids) else None


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


def numbers(trace: Trace, moved: Movement | None, n: int, length: int) -> Json:
  """Returns the numbers of the `length` tokens of row n before the update, and after it if known.

  Args:
    trace, moved: their arrays have an axis of rows in place of P and G.
    n: the row.
    length: of the completion.
  """
  assert trace.logprobs is not None and trace.entropy is not None  # only a reward model has none
  real = n, slice(length)
  row: Json = {
    "advantages": decimals(trace.advantages[real]),
    "logprobs": decimals(trace.logprobs[real]),
    "entropies": decimals(trace.entropy[real]),
  }
  if moved is None:
    return row
  row["logprobs_after"] = decimals(moved.logprobs[real])
  row["logprob_before"] = round(float(moved.before[n]), 4)
  row["logprob_after"] = round(float(moved.after[n]), 4)
  if moved.ratios is not None and moved.stands is not None:
    bound = bounds(trace.advantages[real], trace.lower[real], trace.upper[real])
    stands = np.where(np.isfinite(bound), moved.stands[real], NO_BOUND)
    row["ratios"], row["bounds"] = digits(moved.ratios[real]), digits(bound)
    row["stands"] = [STANDS[stand] for stand in stands]
  return row


def decimals(numbers: Numbers) -> list[float]:
  """Returns the numbers [L], rounded to four decimals."""
  return [round(float(x), 4) for x in numbers]


def digits(numbers: Numbers) -> list[float | None]:
  """Returns the numbers [L], rounded to four significant digits; None where they are not finite."""
  return [float(f"{x:.4g}") if np.isfinite(x) else None for x in numbers]


def bounds(advantages: Numbers, lower: Numbers, upper: Numbers) -> np.ndarray:
  """Returns the ratio that each token is driven to at most, [L]; NaN if there is none.

  It is `upper` where the advantage is positive and `lower` where it is negative. An infinite
  `upper` and a `lower` of 0 stand for no bound.
  """
  bound = np.where(advantages > 0, upper, np.where(advantages < 0, lower, np.nan))
  return np.where(np.isfinite(bound) & (bound > 0), bound, np.nan)
