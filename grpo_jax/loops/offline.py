"""Learns from data that does not change: SFT on solutions; RFT, DPO and distillation on samples.

`offline.data` says what the completions of a prompt are:

    solutions   the worked solution of the data set (SFT)
    samples     sampler.group samples of a policy, scored by the rewards (RFT, distillation)
    pairs       a better and a worse one of those samples, [chosen, rejected] (DPO), or the lines of
                `offline.pairs`

Samples are drawn once, from `offline.teacher` or else from the initial policy, and kept in
DIR/samples.npz.
"""

import functools
import io
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.data import loader
from grpo_jax.distributed import hosts, inputs
from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.evaluation.step_evaluator import Steps
from grpo_jax.io import storage
from grpo_jax.loops.collect import collect
from grpo_jax.loops.collector import check_collector, make_collector
from grpo_jax.loops.groups import Scored, choose, select
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.protocols import RolloutBatches
from grpo_jax.loops.reward_data import pairs
from grpo_jax.loops.reward_data.pairs import FromFile, InOrder, encoded
from grpo_jax.loops.run import Run
from grpo_jax.objectives import common
from grpo_jax.packing import plan
from grpo_jax.rewards.attempts import REQUIRED
from grpo_jax.run import signals
from grpo_jax.run.reasons import reason
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, references
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import (
  TRUNCATED,
  Example,
  HostRollouts,
  HostScored,
  Prompts,
  Rollouts,
  ScoredRollouts,
)

Samples = TypeVar("Samples", bound=HostScored | Steps)  # the content of samples.npz

TEMPERATURE = 1.0  # of log-probs, at whatever temperature the completions were sampled


def train(experiment: Experiment, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  model = build.model(experiment)
  checks.check(experiment, model.decoder)
  kept, batches = make_batches(experiment, model)
  if kept and not (storage.place(workdir) / inputs.SAMPLES).exists():
    # errors in data, prompts and rewards are found before the folder is claimed
    references.check(experiment, experiment.offline.teacher, model, "offline.teacher")
    check_collector(experiment, model)
  policy, evaluator = Learner(experiment, model, TEMPERATURE), Evaluator(experiment, model)

  with Run(experiment, workdir, model, batches, {"policy": policy}, evaluator) as run:
    if kept:
      draw = functools.partial(draw_samples, experiment, model, run.writer, run.stopping)
      like = template(bool(experiment.environment.name))
      kept.rollouts = kept_samples(experiment, run, draw, like)
      if kept.rollouts is None:  # a signal ended the drawing
        return
    learn_in_order(experiment, run, policy, batches)


def make_batches(
  experiment: Experiment, model: build.Model
) -> tuple["Kept | None", RolloutBatches]:
  """Returns the batches to learn from, twice if they are of samples that must be drawn first."""
  if experiment.offline.data == "solutions":
    return None, Solutions(experiment, model)
  if experiment.offline.pairs:
    return None, FromFile(experiment, model)
  kept = Kept(experiment, experiment.offline.prompts)
  return kept, kept


def learn_in_order(
  experiment: Experiment, run: Run, learner: Learner, batches: RolloutBatches
) -> None:
  """Takes the remaining steps of a run, each on the next batch, and finishes it."""
  for step in run.steps():
    with run.writer.phase("data"):
      batch = next(batches)
    learned = learner.learn(step, batch, run.writer)
    tokens = int(rollouts.sampled_lengths(batch).sum())
    speed = {"tokens_per_s/learn": tokens / learned.seconds}
    run.log(step, learned.metrics | speed | length_metrics(experiment, batch, run.writer))
    run.after(step)
  run.finish()


def length_metrics(experiment: Experiment, batch: HostRollouts, writer: Writer) -> Json:
  """Returns how many pairs, prompts or solutions of a batch are too long, and warns of it."""
  if experiment.offline.data != "solutions":
    return pairs.length_metrics(experiment, batch)
  cut = int(((batch.ended == TRUNCATED) & (batch.lengths > 0)).sum())
  skipped = int((batch.prompts.lengths == 0).sum())
  if cut:
    writer.warn(
      "solutions cut",
      f"{cut} of {len(batch.lengths)} solutions of a step have more than sampler.max_length="
      f"{experiment.sampler.max_length} tokens: they are cut and taught without an end token; "
      "solutions_cut counts them",
    )
  if skipped:
    writer.warn(
      "prompts too long",
      f"{skipped} of {len(batch.lengths)} prompts of a step have more than data.max_prompt_length="
      f"{experiment.data.max_prompt_length} tokens and are skipped; prompts_too_long counts them",
    )
  return {"solutions_cut": cut, "prompts_too_long": skipped}


class Solutions(InOrder[Example]):
  """Endless batches of worked solutions."""

  def __init__(self, experiment: Experiment, model: build.Model):
    self.experiment, self.model = experiment, model
    self.order = build.batches(experiment, model)
    if not any(example.solution for example in self.order.first(build.FIRST_PROMPTS)):
      raise SettingError(
        f"offline.data='solutions' with data.name={experiment.data.name!r}: no example of "
        f"{build.FIRST_PROMPTS} has a worked solution to learn from; use other data, or "
        "offline.data='samples', which learns from the best samples of the policy"
      )

  def __next__(self) -> HostRollouts:
    return solutions(next(self.order), self.model, self.experiment)


def solutions(
  examples: Sequence[Example | None], model: build.Model, experiment: Experiment
) -> HostRollouts:
  """Returns worked solutions as groups of one; the end token follows unless one is cut.

  An example without a solution gives an empty completion, which nothing is learned from.
  """
  longest = experiment.sampler.max_length
  prompts, _ = loader.to_prompts(
    examples, model.render, experiment.data.max_prompt_length, experiment.data.on_long
  )
  texts = [
    (e.solution or None if e is not None and n else None,)
    for e, n in zip(examples, prompts.lengths)
  ]
  tokens, lengths, ended = encoded(texts, model, longest)
  zeros = np.zeros(tokens.shape, np.float32)
  return common.written(Rollouts(plan.trim(prompts), tokens, lengths, ended, zeros, zeros))


class Kept(InOrder[int]):
  """Yields batches of the samples in DIR/samples.npz for ever, in the order of `data.shuffle`."""

  def __init__(self, experiment: Experiment, prompts: int):
    self.order = loader.Batches(
      [range(prompts)],
      prompts=experiment.data.prompts,
      seed=experiment.seed,
      shuffle=experiment.data.shuffle,
    )
    self.rollouts: HostScored | None = None  # [prompts, ...]; set once they are drawn

  def __next__(self) -> HostRollouts:
    """Returns a batch without the sampler's log-probs, since another policy learns from it."""
    index = np.asarray(next(self.order))
    return common.written(jax.tree.map(lambda x: x[index], self.rollouts))


def kept_samples(
  experiment: Experiment, run: Run, draw: Callable[[], Samples | None], like: Samples
) -> Samples | None:
  """Returns the samples of DIR/samples.npz, drawn first if needed; None if a signal ended that.

  A damaged file is set aside and the samples are drawn again: they follow from the config alone.
  The run's checkpoints keep their fingerprint.

  Args:
    experiment: of the run; its `offline.teacher` draws the samples.
    run: uses the samples.
    draw: returns the samples; None if a signal ended that.
    like: a tree of the same structure.
  """
  path, known = storage.place(run.folder) / inputs.SAMPLES, run.extra.get("samples")
  samples, error = read_samples(path, known, like)
  # if they are missing on any process, all draw
  if not all(hosts.gather(samples is not None)):
    samples = None
  if samples is None:
    if error:
      run.writer.say(
        f"warning: {path} is damaged ({error}); it is kept as {path}.damaged, and samples are "
        "drawn again"
      )
      if jax.process_index() == 0:
        path.replace(f"{path}.damaged")
    samples = draw()
    if samples is None:
      return None
    if known not in (None, fingerprint(samples)):
      raise CheckpointError(
        f"{path}: was lost or damaged, and the samples that are drawn now are not those that this "
        "run began with, since its teacher, rewards, mesh or eval.batch were others then; put "
        "them back as they were, or begin anew in another --workdir"
      )
    if jax.process_index() == 0:
      write_samples(path, samples)
  run.extra["samples"] = fingerprint(samples)
  inputs.check_hosts({str(path): run.extra["samples"]})
  return samples


def read_samples(
  path: storage.Path, known: str | None, like: Samples
) -> tuple[Samples | None, str]:
  """Returns the samples of a file and ""; or None and what is wrong with it ("" if it is missing).

  Args:
    path: of samples.npz.
    known: their fingerprint; None: not known yet.
    like: a tree of their structure.
  """
  if not path.exists():
    return None, ""
  leaves, structure = jax.tree.flatten(like)
  try:
    with storage.reading(path) as file, np.load(file) as stored:
      if len(stored) != len(leaves):
        return None, f"it holds {len(stored)} arrays, and those of this run are {len(leaves)}"
      arrays = [stored[f"arr_{i}"] for i in range(len(leaves))]
    samples = jax.tree.unflatten(structure, arrays)
    if known not in (None, fingerprint(samples)):
      return None, "it holds other samples"
  except Exception as error:  # what is damaged can fail in any way
    return None, reason(error)
  return samples, ""


def write_samples(path: storage.Path, samples: HostScored | Steps) -> None:
  """Writes samples.npz as a whole, and makes its folder."""
  arrays, _ = jax.tree.flatten(samples)
  content = io.BytesIO()
  np.savez_compressed(content, *arrays)
  with storage.run_errors(str(path.parent)):
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, content.getvalue())


def fingerprint(samples: HostScored | Steps) -> str:
  """Returns a checksum of the content of samples.npz."""
  crc = 0
  for array in jax.tree.leaves(samples):
    crc = zlib.crc32(f"{array.dtype}{array.shape}".encode(), crc)
    crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
  return f"{crc:08x}"


def template(episodes: bool = False) -> HostScored:
  """Returns the structure of kept samples: scored, without the learner's own log-probs.

  Those of episodes say which tokens the environment wrote.
  """
  zero = np.zeros(())
  return ScoredRollouts(
    Prompts(zero, zero), zero, zero, zero, zero, zero, rewards=zero, given=zero, components=zero,
    sampled=zero if episodes else None,
  )  # fmt: skip


def draw_samples(
  experiment: Experiment, model: build.Model, writer: Writer, stopping: Callable[[], str]
) -> HostScored | None:
  """Returns the rollouts of `draw_scored`."""
  scored = draw_scored(experiment, model, writer, stopping)
  return scored and scored.rollouts


def draw_scored(
  experiment: Experiment,
  model: build.Model,
  writer: Writer,
  stopping: Callable[[], str],
  check: Callable[[Scored], None] | None = None,
) -> Scored | None:
  """Returns groups of scored samples of the teacher; None if `stopping` (of the run) ends that.

  First come `offline.held_out` groups of different prompts, then `offline.prompts` groups of other
  prompts. `check` refuses groups as soon as they are drawn.
  """
  o, kind = experiment.offline, experiment.offline.data
  params = references.reference(o.teacher, model, "offline.teacher")
  collector = pairs.with_requirement(make_collector(experiment, model), experiment)
  complete = experiment.kind == "reward_model" or bool(o.require)
  required = collector.names.index(REQUIRED) if o.require else None
  kept: list[Scored] = []
  prompts: list[bytes] = []  # of all that are kept
  held: list[int] = []
  rest: list[int] = []
  for step in range(100 * -(-(o.prompts + o.held_out) // experiment.data.prompts)):
    key = build.key(experiment.seed, build.SAMPLE, step)
    batch = collect(collector, params, key, writer).batch
    batch = without_empty(batch._replace(rollouts=rollouts.to_host(batch.rollouts)))
    if check:
      check(batch)
    if kind == "pairs":
      batch = pairs.of_samples(batch, experiment.seed + step, complete, required)
    kept.append(batch)
    prompts += pairs.prompts_of(batch)
    held, rest = pairs.divide(prompts, o.held_out)
    total = o.prompts + o.held_out
    writer.progress("prompts sampled", min(len(held) + len(rest), total), total)
    if len(held) == o.held_out and len(rest) >= o.prompts:
      return choose(kept, [*held, *rest[: o.prompts]])
    if signal_name := stopping():
      writer.say(f"{signal_name}: samples are kept when all are drawn; {signals.how_to_resume()}")
      return None
  gave = (
    "a better and a worse sample" if kind == "pairs" or experiment.sampler.tries > 1 else "samples"
  )
  besides = f" beside the {len(held)} that are held out" if o.held_out else ""
  raise SettingError(
    f"offline.prompts={o.prompts}: only {len(rest)} prompts gave {gave}{besides}; use fewer, or a "
    f"larger sampler.group than {experiment.sampler.group}"
  )


def without_empty(batch: Scored) -> Scored:
  """Returns the groups with completions: no fillers, and no prompts that were too long."""
  return select(batch, np.flatnonzero(batch.rollouts.prompts.lengths).tolist())
