"""Learn from data that does not change: SFT on worked solutions; RFT, DPO and distillation on samples made first.

`offline.data` says what the completions of a prompt are:

    solutions   the data set's own worked solution (SFT)
    samples     sampler.group samples of a policy, scored by the rewards (RFT, off-policy distillation)
    pairs       one better and one worse of those samples, [chosen, rejected] (DPO)

Samples are drawn once, from `offline.teacher` or else from where the policy starts, and kept in DIR/samples.npz.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax import checkpoint, learn, metrics, sampler
from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.errors import SettingError
from grpo_jax.loops import build, imports
from grpo_jax.loops.collect import Scored, collect, fill, select, totals, varied
from grpo_jax.loops.session import Session
from grpo_jax.objectives import common
from grpo_jax.packing import plan
from grpo_jax.types import STOPPED, TRUNCATED, Example, Prompts, Rollouts

KINDS = ("solutions", "samples", "pairs")


def run(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Session`."""
  kind = config.offline.data
  if kind not in KINDS:
    raise SettingError(f"offline.data={kind!r}: use one of {', '.join(KINDS)}")
  if config.learner.mu != 1:
    raise SettingError(f"learner.mu={config.learner.mu}: data that does not change is gone through by steps; use 1")
  model = build.model(config)
  batches = build.batches(config) if kind == "solutions" else Kept(config)
  parts = learn.parts(config.learner, config.data.prompts)
  with Session(config, workdir, model, batches) as s:
    if kind != "solutions":
      batches.rollouts = kept_samples(config, workdir, model, s.writer, s.stopping)
      if batches.rollouts is None:
        return
    for step in s.steps():
      with s.writer.phase("data"):
        given = solutions(next(batches), model, config) if kind == "solutions" else common.written(next(batches))
        packing = plan.pack(given, model.layout, parts)
        rollouts, placed = host.to_device(model.layout, (given, packing))
      with s.writer.phase("learn"):
        s.state, learned, trace = s.update(s.state, s.ref_params, None, rollouts, placed)
        learned = host.to_host(learned)
      report, _ = s.report(step, rollouts, trace, placed)
      numbers = learned | report | host.statistics(given) | plan.padding(given, packing, model.layout, parts)
      numbers |= {"tokens_per_s/learn": int(given.lengths.sum()) / s.writer.seconds["learn"]}
      s.log(step, numbers)


def solutions(rows: Sequence[Example | None], model: build.Model, config: ConfigDict) -> Rollouts:
  """The worked solutions as groups of one, each with its end token; longer ones are cut, and then have none."""
  longest = config.sampler.max_length
  prompts, _ = loader.to_prompts(rows, model.render, config.data.max_prompt_length, config.data.on_long)
  tokens = np.zeros((len(rows), 1, longest), np.int32)
  lengths = np.zeros((len(rows), 1), np.int32)
  ended = np.full((len(rows), 1), TRUNCATED, np.int32)
  for p, example in enumerate(rows):
    if example is None or not prompts.lengths[p]:
      continue
    ids = [*model.tokenizer.encode(example.solution), model.tokenizer.eos_id]
    ended[p, 0] = STOPPED if len(ids) <= longest else TRUNCATED
    ids = ids[:longest]
    tokens[p, 0, : len(ids)] = ids
    lengths[p, 0] = len(ids)
  zeros = np.zeros(tokens.shape, np.float32)
  return Rollouts(plan.trim(prompts), tokens, lengths, ended, zeros, zeros)


class Kept:
  """Batches of samples that are kept, shuffled anew in each epoch; the position is saved and restored."""

  def __init__(self, config: ConfigDict):
    self.order = loader.Batches([range(config.offline.prompts)], prompts=config.data.prompts, seed=config.seed)
    self.rollouts: Rollouts | None = None  # numpy, [offline.prompts, ...]
    self.get_state, self.set_state = self.order.get_state, self.order.set_state

  def __next__(self) -> Rollouts:
    index = np.asarray(next(self.order))
    return jax.tree.map(lambda x: x[index], self.rollouts)


def kept_samples(
  config: ConfigDict, workdir: str, model: build.Model, writer: metrics.Writer, stopping: Callable[[int], str]
) -> Rollouts | None:
  """The samples of DIR/samples.npz, drawn first if they are not there; None where a signal ended that."""
  path = os.path.join(workdir, "samples.npz")
  if not os.path.exists(path):
    drawn = draw_samples(config, model, writer, stopping)
    if drawn is not None and jax.process_index() == 0:
      arrays, _ = jax.tree.flatten(drawn)
      with open(path + ".tmp", "wb") as f:
        np.savez_compressed(f, *arrays)
      os.replace(path + ".tmp", path)
    return drawn
  like = jax.tree.structure(template())
  with np.load(path) as stored:
    return jax.tree.unflatten(like, [stored[f"arr_{i}"] for i in range(like.num_leaves)])


def template() -> Rollouts:
  """The structure of kept samples: scored, without the learner's own log-probs."""
  zero = np.zeros(())
  return Rollouts(Prompts(zero, zero), zero, zero, zero, zero, zero, rewards=zero, given=zero, parts=zero)


def draw_samples(
  config: ConfigDict, model: build.Model, writer: metrics.Writer, stopping: Callable[[int], str]
) -> Rollouts | None:
  """`offline.prompts` groups of scored samples of the teacher; None where `stopping` (of the session) says so."""
  wanted, kind = config.offline.prompts, config.offline.data
  params = build.reference(config.offline.teacher, model, "offline.teacher")
  functions = imports.rewards(config.rewards)
  sample: Callable[..., Any] = sampler.make_sampler(model.decoder, config.sampler, model.stop)
  batches = build.batches(config)
  parts: list[Scored] = []
  found = 0
  for step in range(100 * -(-wanted // config.data.prompts)):
    key = build.key(config.seed, build.SAMPLE, step)
    batch, _ = collect(batches, sample, params, key, model, functions, config, writer)
    batch = without_empty(batch)
    parts.append(pairs(batch, config.seed + step) if kind == "pairs" else batch)
    found += len(parts[-1].rows)
    if step % 10 == 0:
      writer.say(f"{min(found, wanted)} of {wanted} prompts sampled")
    if found >= wanted:
      return fill(parts, wanted).rollouts
    if signal_name := stopping(step):
      writer.say(f"{signal_name}: samples are kept when all are drawn; {checkpoint.how_to_go_on()}")
      return None
  gave = "a better and a worse sample" if kind == "pairs" or config.sampler.tries > 1 else "samples"
  raise SettingError(
    f"offline.prompts={wanted}: only {found} prompts gave {gave}; use fewer, or a larger sampler.group than "
    f"{config.sampler.group}"
  )


def without_empty(batch: Scored) -> Scored:
  """The groups that were sampled: not the rows that only fill the batch, nor prompts that were too long."""
  return select(batch, np.flatnonzero(batch.rollouts.prompts.lengths).tolist())


def pairs(batch: Scored, seed: int) -> Scored:
  """One of the best and one of the worst samples of every group whose totals differ: [chosen, rejected]."""
  rng = np.random.default_rng(seed)
  batch = varied(batch)
  total = totals(batch.rollouts)
  keep = np.flatnonzero(total.max(1) > total.min(1))
  batch, total = select(batch, keep.tolist()), total[keep]
  r = batch.rollouts
  best = [int(rng.choice(np.flatnonzero(row == row.max()))) for row in total]
  worst = [int(rng.choice(np.flatnonzero(row == row.min()))) for row in total]
  index = np.array([best, worst], np.int32).reshape(2, -1).T
  pick = lambda x: x[np.arange(len(index))[:, None], index]
  chosen = {name: pick(value) for name, value in vars(r).items() if value is not None and name != "prompts"}
  completions = [[group[i] for i in which] for group, which in zip(batch.completions, index)]
  return Scored(batch.rows, completions, Rollouts(r.prompts, **chosen), [])
