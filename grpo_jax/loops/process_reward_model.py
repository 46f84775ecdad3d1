"""Trains a process reward model on solutions whose steps have labels.

The solutions are samples of a policy, drawn and labelled once and kept in DIR/samples.npz, or those
of a file (`offline.steps`). Samples are labelled by `offline.continuations`
(reward_data/continuations.py), or if that is 0 by the rewards, which must give each step a value in
[0, 1] like `steps.steps_correct`. The solutions of `offline.held_out` prompts are kept for
evaluation: no batch has one of these prompts.

There are two models, as in reward_model.py: the reward model starts from `init_from`, with a fresh
head if that is a policy; the samples and their continuations are drawn from `offline.teacher`, or
else from `init_from`.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np

from grpo_jax.distributed import inputs
from grpo_jax.errors import SettingError
from grpo_jax.evaluation.step_evaluator import StepEvaluator, Steps
from grpo_jax.io import storage
from grpo_jax.loops.collector import check_collector
from grpo_jax.loops.groups import Scored, known, select, with_rewards
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import Kept, draw_scored, kept_samples, learn_in_order, template
from grpo_jax.loops.reward_data import continuations, steps
from grpo_jax.loops.reward_data.pairs import divide, prompts_of
from grpo_jax.loops.reward_model import TEMPERATURE, part, sampled_policy
from grpo_jax.loops.run import Run
from grpo_jax.run import signals
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks, references
from grpo_jax.setup.experiment import Experiment


def train(experiment: Experiment, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  model = build.model(experiment, scores=True)
  checks.check(experiment, model.decoder)
  evaluator, held = StepEvaluator(experiment, model), experiment.offline.held_out
  if experiment.offline.steps:
    train_on_file(experiment, workdir, model, evaluator)
    return
  batches = Kept(experiment, experiment.offline.prompts)
  sampled, policy = sampled_policy(experiment)
  if not (storage.place(workdir) / inputs.SAMPLES).exists():
    check_collector(sampled, policy)  # before the folder is claimed
    if experiment.offline.continuations:
      continuations.make_labeller(sampled, policy)
  learner = Learner(experiment, model, TEMPERATURE)

  with Run(experiment, workdir, model, batches, {"policy": learner}, evaluator) as run:
    draw = functools.partial(draw_solutions, sampled, policy, run.writer, run.stopping)
    solutions = kept_samples(experiment, run, draw, Steps(template(), np.zeros(())))
    if solutions is None:  # a signal ended the drawing
      return
    evaluator.take(part(solutions, slice(held)))
    batches.rollouts = part(solutions, slice(held, None)).rollouts
    learn_in_order(experiment, run, learner, batches)


def train_on_file(
  experiment: Experiment, workdir: str, model: build.Model, evaluator: StepEvaluator
) -> None:
  """Trains on the solutions of `offline.steps`."""
  solutions, summary = read_solutions(experiment, model)
  held = experiment.offline.held_out
  batches = Kept(experiment, len(solutions.rule) - held)
  evaluator.take(part(solutions, slice(held)))
  batches.rollouts = part(solutions, slice(held, None)).rollouts
  learner = Learner(experiment, model, TEMPERATURE)
  with Run(experiment, workdir, model, batches, {"policy": learner}, evaluator) as run:
    run.writer.say(summary)
    learn_in_order(experiment, run, learner, batches)


def read_solutions(experiment: Experiment, model: build.Model) -> tuple[Steps, str]:
  """Returns the solutions of `offline.steps`, held-out groups first, and a summary in words."""
  read, held_out = steps.labelled(experiment, model), experiment.offline.held_out
  batch = Scored([None] * len(read.rollouts.lengths), read.rollouts, [], 0.0)
  real = np.flatnonzero(read.rollouts.given.any(axis=(1, 2))).tolist()
  batch = select(batch, real)
  order = np.random.default_rng(experiment.seed).permutation(len(real)).tolist()
  prompts = prompts_of(batch)
  first, rest = divide([prompts[place] for place in order], held_out)
  if len(first) < held_out or not rest:
    raise SettingError(
      f"offline.held_out={held_out}: {experiment.offline.steps} has {len(set(prompts))} prompts "
      f"that fit; use at most {len(set(prompts)) - 1}"
    )
  places = [order[place] for place in rest]
  if not experiment.data.shuffle:
    places.sort()
  chosen = select(batch, [*[order[place] for place in first], *places]).rollouts
  summary = (
    f"{int((chosen.lengths > 0).sum())} solutions with {int(chosen.given.sum())} labelled steps, "
    f"{(chosen.rewards[chosen.given] <= 0.5).mean():.0%} of them wrong; left out: {read.without} "
    f"lines without a labelled step, {read.too_long} groups whose prompt is too long, {read.cut} "
    "steps beyond sampler.max_length"
  )
  return Steps(chosen, np.full(chosen.rewards.shape, np.nan, np.float32)), summary


def draw_solutions(
  experiment: Experiment, policy: build.Model, writer: Writer, stopping: Callable[[], str]
) -> Steps | None:
  """Returns samples with labels at the last tokens of steps; None if `stopping` ends that.

  Held-out groups come first.
  """
  by_rewards = not experiment.offline.continuations
  check = functools.partial(check_labels, experiment) if by_rewards else None
  batch = draw_scored(experiment, policy, writer, stopping, check)
  if batch is None:
    return None
  r = batch.rollouts
  r = with_rewards(r, r.rewards, known(batch), r.components)
  rule = np.where(r.given, r.rewards, np.nan).astype(np.float32)
  if not by_rewards:
    labelled = continue_all(experiment, policy, batch, writer, stopping)
    return labelled and Steps(labelled.rollouts, rule)
  writer.say(
    f"{int(r.given.sum())} steps were labelled by the rewards, "
    f"{(r.rewards[r.given] <= 0.5).mean():.0%} wrong"
  )
  return Steps(r, np.full_like(rule, np.nan))


def check_labels(experiment: Experiment, batch: Scored) -> None:
  """Refuses rewards outside of [0, 1], which cannot be labels of steps."""
  labels = batch.rollouts.rewards[known(batch)]
  if not np.all((labels >= 0) & (labels <= 1)):
    raise SettingError(
      f"rewards.functions={experiment.rewards.functions}: gave {labels.min():g} to "
      f"{labels.max():g}, and labels of steps are from 0 to 1; use (('steps', "
      "'steps.steps_correct', 1.0),), or offline.continuations"
    )


def continue_all(
  experiment: Experiment,
  policy: build.Model,
  batch: Scored,
  writer: Writer,
  stopping: Callable[[], str],
) -> Scored | None:
  """Returns samples labelled by continuations of their policy; None if `stopping` ends that."""
  labeller = continuations.make_labeller(experiment, policy)
  params = references.reference(experiment.offline.teacher, policy, "offline.teacher")
  total, several, labelled = len(batch.examples), experiment.eval.batch, []
  count = continuations.Counts(0, 0, 0, 0, 0)
  for start in range(0, total, several):
    done = min(start + several, total)
    with writer.phase("label"):
      key = build.key(experiment.seed, build.CONTINUE, start)
      few = select(batch, range(start, done))
      part_labelled, more = continuations.label(labeller, params, few, key)
    labelled.append(part_labelled)
    count = continuations.Counts(*(a + b for a, b in zip(count, more)))
    writer.progress("prompts labelled", done, total)
    if signal_name := stopping():
      writer.say(
        f"{signal_name}: samples are kept when all are labelled; {signals.how_to_resume()}"
      )
      return None
  if count.faults:
    writer.warn(
      "eval.reward",
      f"eval.reward={experiment.eval.reward!r} failed on {count.faults} completions, counted as "
      "wrong",
    )
  writer.say(
    f"{count.steps} steps were labelled by {experiment.offline.continuations} continuations of "
    f"each of {count.continued} beginnings, {count.wrong / max(1, count.steps):.0%} of them "
    f"wrong; the last steps of {count.unfinished} samples that were cut off have no label"
  )
  return batch._replace(rollouts=jax.tree.map(lambda *x: np.concatenate(x), *labelled))
