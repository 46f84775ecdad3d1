"""Train a process reward model on solutions whose steps have labels.

The solutions are samples of a policy, drawn and labelled once and kept in DIR/samples.npz, or those
of a file (`offline.steps`). Samples are labelled by continuations (`offline.continuations`, see
continuations.py), or (0) by the rewards, which then give a value in [0, 1] to each step, as
`steps.steps_correct` does. The solutions of `offline.held_out` prompts are kept for evaluation: no
batch has one of these prompts.

Two models, as in reward_model.py: the reward model starts as `init_from` says, where that is a
policy with a fresh head; the samples and their continuations are of `offline.teacher`, or else of
`init_from`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.evaluation.step_evaluator import StepEvaluator, Steps
from grpo_jax.io import storage
from grpo_jax.loops.collect import check_collector
from grpo_jax.loops.groups import Scored, known, select
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import Kept, draw_scored, kept_samples, template
from grpo_jax.loops.reward_data import continuations, steps
from grpo_jax.loops.reward_data.pairs import divide, prompts_of
from grpo_jax.loops.reward_model import TEMPERATURE, of_policy, part
from grpo_jax.loops.run import Run
from grpo_jax.run import signals
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, checks, registry


def train(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  model = build.model(config, scores=True)
  checks.check(config, model.decoder, registry.objective(config.objective.name))
  evaluator, held = StepEvaluator(config, model), config.offline.held_out
  if config.offline.steps:
    solutions, of_file = read_solutions(config, model)
    batches = Kept(config, len(solutions.rule) - held)
    evaluator.take(part(solutions, slice(held)))
    batches.rollouts = part(solutions, slice(held, None)).rollouts
  else:
    batches, sampled = Kept(config, config.offline.prompts), of_policy(config)
    policy = build.model(sampled)
    if not (storage.place(workdir) / "samples.npz").exists():
      check_collector(sampled, policy)  # what is wrong with it is said before the folder is claimed
      if config.offline.continuations:
        continuations.make_labeller(sampled, policy)
  learner = Learner(config, model, TEMPERATURE)

  with Run(config, workdir, model, batches, {"policy": learner}, evaluator) as run:
    if config.offline.steps:
      run.writer.say(of_file)
    else:
      draw = functools.partial(draw_solutions, sampled, policy, run.writer, run.stopping)
      solutions = kept_samples(sampled, run, draw, Steps(template(), np.zeros(())))
      if solutions is None:  # a signal ended the drawing
        return
      evaluator.take(part(solutions, slice(held)))
      batches.rollouts = part(solutions, slice(held, None)).rollouts
    for step in run.steps():
      with run.writer.phase("data"):
        given = next(batches)
      numbers = learner.learn(step, given, run.writer).metrics
      numbers |= {"tokens_per_s/learn": int(given.lengths.sum()) / run.writer.seconds["learn"]}
      run.log(step, numbers)
      run.after(step)
    run.finish()


def read_solutions(config: ConfigDict, model: build.Model) -> tuple[Steps, str]:
  """The solutions of `offline.steps`, a group of each held-out prompt first; and what was left out
  of them, in words.

  Raises:
    SettingError: a file that cannot be read, or has too few prompts.
  """
  found, held_out = steps.labelled(config, model), config.offline.held_out
  batch = Scored([None] * len(found.rollouts.lengths), found.rollouts, [], 0.0)
  real = np.flatnonzero(found.rollouts.given.any(axis=(1, 2))).tolist()
  batch = select(batch, real)
  order = np.random.default_rng(config.seed).permutation(len(real)).tolist()
  prompts = prompts_of(batch)
  first, rest = divide([prompts[place] for place in order], held_out)
  if len(first) < held_out or not rest:
    raise SettingError(
      f"offline.held_out={held_out}: {config.offline.steps} has {len(set(prompts))} prompts that "
      "fit; use at most "
      f"{len(set(prompts)) - 1}"
    )
  chosen = select(batch, [order[place] for place in [*first, *rest]]).rollouts
  said = (
    f"{int((chosen.lengths > 0).sum())} solutions with {int(chosen.given.sum())} labelled steps, "
    f"{(chosen.rewards[chosen.given] <= 0.5).mean():.0%} of them wrong; left out: {found.without} "
    "lines without a "
    f"labelled step, {found.too_long} groups whose prompt is too long, {found.cut} steps beyond "
    "sampler.max_length"
  )
  return Steps(chosen, np.full(chosen.rewards.shape, np.nan, np.float32)), said


def draw_solutions(
  config: ConfigDict, policy: build.Model, writer: Writer, stopping: Callable[[int], str]
) -> Steps | None:
  """Samples with labels at the last token of each step, held-out groups first; None where
  `stopping` says so.

  Raises:
    SettingError: as `draw_scored`; rewards that label no step, or not by a number from 0 to 1.
  """
  batch = draw_scored(config, policy, writer, stopping)
  if batch is None:
    return None
  r = dataclasses.replace(batch.rollouts, given=known(batch))
  rule = np.where(r.given, r.rewards, np.nan).astype(np.float32)
  if config.offline.continuations:
    batch = continue_all(config, policy, batch, writer, stopping)
    return batch and Steps(batch.rollouts, rule)
  if not np.all((r.rewards >= 0) & (r.rewards <= 1), where=r.given):
    raise SettingError(
      f"rewards.functions={config.rewards.functions}: gave {r.rewards[r.given].min():g} to "
      f"{r.rewards[r.given].max():g}, and labels of steps are from 0 to 1; use (('steps', "
      "'steps.steps_correct', 1.0),)"
      ", or offline.continuations"
    )
  writer.say(
    f"{int(r.given.sum())} steps were labelled by the rewards, "
    f"{(r.rewards[r.given] <= 0.5).mean():.0%} wrong"
  )
  return Steps(r, np.full_like(rule, np.nan))


def continue_all(
  config: ConfigDict,
  policy: build.Model,
  batch: Scored,
  writer: Writer,
  stopping: Callable[[int], str],
) -> Scored | None:
  """The samples with labels from continuations by the policy that they are of; None where
  `stopping` says so.
  """
  labeller = continuations.make_labeller(config, policy)
  params = build.reference(config.offline.teacher, policy, "offline.teacher")
  total, several, labelled = len(batch.examples), config.eval.batch, []
  count = continuations.Counts(0, 0, 0, 0, 0)
  for start in range(0, total, several):
    done = min(start + several, total)
    with writer.phase("label"):
      key = build.key(config.seed, build.CONTINUE, start)
      found, more = continuations.label(labeller, params, select(batch, range(start, done)), key)
    labelled.append(found)
    count = continuations.Counts(*(a + b for a, b in zip(count, more)))
    writer.progress("prompts labelled", done, total)
    if signal_name := stopping(start // several):
      writer.say(f"{signal_name}: samples are kept when all are labelled; {signals.how_to_go_on()}")
      return None
  if count.faults:
    writer.warn(
      "eval.reward",
      f"eval.reward={config.eval.reward!r} failed on {count.faults} completions, counted as wrong",
    )
  writer.say(
    f"{count.steps} steps were labelled by {config.offline.continuations} continuations of each of "
    f"{count.continued} "
    f"beginnings, {count.wrong / max(1, count.steps):.0%} of them wrong; the last steps of "
    f"{count.unfinished} samples "
    "that were cut off have no label"
  )
  return batch._replace(rollouts=jax.tree.map(lambda *x: np.concatenate(x), *labelled))
