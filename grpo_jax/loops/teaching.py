"""Teaches the reward model of an iterative run, by the reward `iterative.labels`.

    a reward that returns a number      pairs, a better and a worse sample of a prompt
                                        (Bradley-Terry)
    a reward that returns values of     all samples of a prompt, with a label in [0, 1] at the end
    steps                               of each step

The kind follows from what the reward returns for worked solutions of the data. The second kind is a
process reward model, which is asked after each step (DeepSeekMath, arXiv 2402.03300, section
4.1.3).
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from grpo_jax.aliases import Json
from grpo_jax.errors import SettingError, said_of
from grpo_jax.learning.stop_rules import STOP_RULES
from grpo_jax.loops.collect import score
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored, failed, known, last_tokens, select, widen, with_rewards
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import without_empty
from grpo_jax.loops.reward_data import pairs
from grpo_jax.loops.reward_data.replay import Replay, lessons
from grpo_jax.reward_models import step_scores
from grpo_jax.reward_models.scores import margins, pair_metrics, scores_of_all
from grpo_jax.rewards import attempts
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, registry, solutions
from grpo_jax.setup.experiment import LEARNING, Experiment, changed
from grpo_jax.types import Example, HostScored, KnownScored

NAME = LEARNING  # of the learner and of its reward


class Kind(NamedTuple):
  """A kind of reward model."""

  objective: str
  steps: bool  # asked after each step, or else after the last token
  learned: tuple[str, ...]  # the metrics of its updates that are logged
  item: str  # the thing that it judges, in words and metrics


OUTCOME = Kind(
  "reward_model", False, ("loss", "pair_accuracy", "reward_margin", "grad_norm", "lr"), "pair"
)
STEPS = Kind("process_reward_model", True, ("loss", "step_accuracy", "grad_norm", "lr"), "step")


class Judge(Learner):
  """Trains the reward model, with its own phase, learning rate and metrics."""

  PHASE = "teach"
  RATE = "iterative.reward_model_lr"
  METRICS = f"{NAME}/"

  def start(self) -> None:
    """Starts as a learner does; errors of its folder name the setting that gave it."""
    with said_of_folder(self.experiment):
      super().start()

  def load_base(self, pin: Json) -> Json:
    """Loads the base under adapters as a learner does."""
    with said_of_folder(self.experiment):
      return super().load_base(pin)


def said_of_folder(experiment: Experiment) -> contextlib.AbstractContextManager[None]:
  """Names `iterative.reward_model` in errors of the folder that the reward model starts from."""
  return said_of("iterative.reward_model" if experiment.iterative.reward_model else "")


def kind_of(
  label: Callable, examples: Sequence[Example], model: build.Model, experiment: Experiment
) -> Kind:
  """Returns the kind of reward model that learns from the values of a reward.

  Args:
    label: the reward; if it fails on all worked solutions, or gives none a value, it is taken for
      one of outcomes.
    examples: of the training data.
    model: the policy.
    experiment: of the run.
  """
  if attempts.looks_at_group(label):
    return OUTCOME
  with deadline.Guard(experiment.rewards.deadline) as call:
    for example in examples:
      value, _ = attempts.guarded(call, label, example, solutions.worked_solution(example, model))
      if value is not None:
        return STEPS if isinstance(value, list | tuple) else OUTCOME
  return OUTCOME


def experiment_of_reward_model(experiment: Experiment, kind: Kind) -> Experiment:
  """Returns the experiment in which the reward model is built and trained."""
  cfg = experiment.iterative
  source = cfg.reward_model or experiment.init_from
  objective = {"name": kind.objective, **registry.objective_defaults(kind.objective)}
  learner = {"lr": cfg.reward_model_lr, "schedule": "constant", "warmup": 0, "mu": 1}
  learner |= {"minibatches": 1, "microbatch": part_of(cfg.pairs, experiment.learner.microbatch)}
  learner |= dict.fromkeys(STOP_RULES, 0.0)
  changes = {
    "init_from": source,
    "model.variant": "" if source else experiment.model.variant,
    "objective": ConfigDict(objective),
    "data.prompts": cfg.pairs,
  }
  return changed(experiment, changes | {f"learner.{name}": x for name, x in learner.items()})


def part_of(pairs: int, microbatch: int) -> int:
  """Returns how many pairs are learned from at a time, at most `microbatch`; 0: all of them.

  Both are multiples of the mesh's shards, and so is what is returned; it divides `pairs`.
  """
  if not 0 < microbatch < pairs:
    return 0
  shards = math.gcd(pairs, microbatch)
  return next(n for n in range(microbatch, 0, -1) if pairs % n == 0 == n % shards)


# -- samples of a step


def labelled(
  kind: Kind, batch: Scored, collector: Collector, experiment: Experiment, step: int
) -> HostScored:
  """Returns the samples of a step from which this kind of reward model can learn, `[N, ...]`."""
  return (labelled_steps if kind.steps else labelled_pairs)(batch, collector, experiment, step)


def labelled_pairs(
  batch: Scored, collector: Collector, experiment: Experiment, step: int
) -> HostScored:
  """Returns a better and a worse sample of each prompt that has both, by their labels.

  Both have stopped by themselves, and the reward failed on neither.
  """
  r = batch.rollouts
  labels = r.components[..., collector.names.index(experiment.iterative.labels)]
  real = (r.lengths > 0) & ~np.isnan(labels) & ~failed(batch, experiment.iterative.labels)
  last = last_tokens(r) & real[..., None]
  on_last = np.where(last, labels[..., None], 0.0).astype(np.float32)
  kept = on_host(batch, with_rewards(r, on_last, last, r.components), experiment)
  return pairs.of_samples(kept, experiment.seed + step, complete=True).rollouts


def labelled_steps(
  batch: Scored, collector: Collector, experiment: Experiment, step: int
) -> HostScored:
  """Returns all samples of each prompt with a labelled step, `[N, G, ...]`.

  Labels are rewards at the last tokens of steps, where they are `groups.known`.
  """
  name = experiment.iterative.labels
  label = [(name, function, 1.0) for other, function, _ in collector.rewards if other == name]
  scored = score(collector._replace(rewards=label, models=[]), batch.examples, batch.rollouts)
  r, given = scored.rollouts, known(scored)
  if not np.all((r.rewards >= 0) & (r.rewards <= 1), where=given):
    raise SettingError(
      f"iterative.labels={name!r}: gave {r.rewards[given].min():g} to {r.rewards[given].max():g}, "
      "and labels of steps are from 0 to 1; use a reward such as steps.steps_correct"
    )
  labels = np.where(given, r.rewards, 0.0)
  kept = on_host(batch, with_rewards(r, labels, given, r.components), experiment)
  return select(kept, np.flatnonzero(kept.rollouts.given.any(axis=(1, 2))).tolist()).rollouts


def on_host(batch: Scored, r: KnownScored, experiment: Experiment) -> Scored:
  """Returns the batch with these rollouts on the host, without empty groups.

  Prompts have one width in the whole run.
  """
  wide = widen(rollouts.to_host(r), experiment.data.max_prompt_length)
  return without_empty(batch._replace(rollouts=wide, faults=[]))


# -- at the end of an iteration


def earlier_steps(last: int, experiment: Experiment) -> range:
  """Returns the steps whose samples may be replayed in the iteration that `last` ends."""
  cfg = experiment.iterative
  first = last + 1 - cfg.steps
  return range(max(0, first - cfg.kept_steps), first)


def oldest_step(saved: int, experiment: Experiment) -> int:
  """Returns the oldest step whose samples a run may need that resumes at `saved` or later."""
  cfg = experiment.iterative
  return saved - saved % cfg.steps - cfg.kept_steps


def teach(
  judge: Learner, kind: Kind, replay: Replay, step: int, experiment: Experiment, writer: Writer
) -> dict[str, float]:
  """Trains the reward model on the samples of the iteration that `step` ends, and on earlier ones.

  Returns:
    `reward_model/...`: means of the updates' metrics; the numbers of new and of replayed pairs (or
    prompts); `new_pair_accuracy` (`new_step_accuracy`), see `agreement`.
  """
  cfg, updates = experiment.iterative, []
  new = replay.read(range(step + 1 - cfg.steps, step + 1))
  earlier = earlier_steps(step, experiment)
  past = replay.read(earlier) if earlier and cfg.replay else None
  counts = {"new": 0, "replayed": 0, "updates": 0}
  agreed = {}
  with writer.phase("agreement"):
    show = functools.partial(writer.progress, "agreement")
    if len(new.lengths):
      agreed[agreement_name(kind)] = agreement(judge, kind, new, experiment, show)
  seed = (experiment.seed, step)
  for lesson in lessons(new, past, batch=cfg.pairs, share=cfg.replay, epochs=cfg.epochs, seed=seed):
    learned = judge.learn(step, lesson.pairs, writer).metrics
    updates.append({name: float(learned[name]) for name in kind.learned})
    counts["new"] += lesson.new
    counts["replayed"] += lesson.replayed
    counts["updates"] += 1
  means = {}
  if updates:
    means = {name: float(np.mean([update[name] for update in updates])) for name in kind.learned}
  return {f"{NAME}/{name}": value for name, value in (means | counts | agreed).items()}


def agreement_name(kind: Kind) -> str:
  """Returns the name of `agreement` among the metrics."""
  return f"new_{kind.item}_accuracy"


def agreement(
  judge: Learner,
  kind: Kind,
  new: HostScored,
  experiment: Experiment,
  show: Callable[[int, int], None],
) -> float:
  """Returns the share of new pairs, or steps, that the reward model orders, or calls, right.

  Args:
    judge: the reward model, which has not learned from them yet.
    kind: of the reward model.
    new: `[N, ...]`, at least one.
    experiment: of the run.
    show: called with the number of prompts scored and their total.
  """
  sizes = build.sizes(experiment, judge.model.layout, microbatches=1)
  scores = scores_of_all(
    judge.model.decoder, judge.params, new, sizes, experiment.iterative.pairs, show
  )
  if kind.steps:
    return step_scores.step_metrics(scores[new.given], new.rewards[new.given])["agreement"]
  return pair_metrics(margins(scores, new.lengths))["pair_accuracy"]


def in_words(kind: Kind, metrics: dict[str, float]) -> str:
  """Returns how well the reward model did before `teach`; "" if there was nothing new."""
  agreed = metrics.get(f"{NAME}/{agreement_name(kind)}")
  if agreed is None:
    return ""
  return f"reward model agreed with the labels on {agreed:.0%} of its new {kind.item}s"
