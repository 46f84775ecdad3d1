"""What the reward model of an iterative run learns from: samples of the policy, by the reward
`iterative.labels`.

    a reward that returns a number          pairs, a better and a worse sample of a prompt (Bradley-Terry)
    a reward that returns values of steps   all samples of a prompt, with a label in [0, 1] at the end of each step

The kind follows from what the reward returns for worked solutions of the data. With the second the
reward model is a process reward model, which is asked after each step (DeepSeekMath, arXiv
2402.03300, section 4.1.3).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.loops.collect import Collector, score
from grpo_jax.loops.groups import Scored, failed, known, last_tokens, select, widen
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import without_empty
from grpo_jax.loops.reward_data import pairs
from grpo_jax.loops.reward_data.replay import Replay, lessons
from grpo_jax.reward_models import step_scores
from grpo_jax.reward_models.scores import margins, pair_metrics, scores_of_all
from grpo_jax.rewards import combine
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, checks, registry, scorers
from grpo_jax.types import Example, Rollouts

NAME = scorers.LEARNING  # of the learner, and of its reward among the others


class Kind(NamedTuple):
  """A kind of reward model."""

  objective: str  # that trains it
  steps: bool  # asked after each step, or else after the last token
  learned: tuple[str, ...]  # of its updates, as logged
  item: str  # what it is right or wrong about, in words and metrics


OUTCOME = Kind(
  "reward_model", False, ("loss", "pair_accuracy", "reward_margin", "grad_norm", "lr"), "pair"
)
STEPS = Kind("process_reward_model", True, ("loss", "step_accuracy", "grad_norm", "lr"), "step")


class Judge(Learner):
  """The reward model, as what learns: its updates are a phase of their own, as are its rate and its
  metrics.
  """

  PHASE = "teach"
  RATE = "iterative.reward_model_lr"
  METRICS = f"{NAME}/"


def kind_of(
  label: Callable, examples: Sequence[Example], model: build.Model, config: ConfigDict
) -> Kind:
  """The kind of reward model that learns from what a reward says, by what it says of worked
  solutions.

  Args:
    label: the reward; one that fails on them all, or says nothing of any, is taken for one of
      outcomes.
    examples: of the training data.
    model: the policy.
    config: of the run.

  Raises:
    SettingError: the reward says that it cannot work as it is set.
  """
  if combine.looks_at_group(label):
    return OUTCOME
  with deadline.Guard(config.rewards.deadline) as call:
    for example in examples:
      found, _ = combine.guarded(call, label, example, checks.worked_solution(example, model))
      if found is not None:
        return STEPS if isinstance(found, list | tuple) else OUTCOME
  return OUTCOME


def of_reward_model(config: ConfigDict, kind: Kind) -> ConfigDict:
  """The config that the reward model is built and trained by."""
  cfg, made = config.iterative, config.copy_and_resolve_references()
  made.init_from = cfg.reward_model or config.init_from
  if made.init_from:
    made.model.variant = ""
  made.objective = ConfigDict(
    {"name": kind.objective, **registry.objective_defaults(kind.objective)}
  )
  made.data.prompts = cfg.pairs
  own = {
    "lr": cfg.reward_model_lr,
    "schedule": "constant",
    "warmup": 0,
    "mu": 1,
    "minibatches": 1,
    "microbatch": 0,
  }
  made.learner.update(own | {"stop_reached": 0.0, "stop_surrogate": 0.0, "stop_kl": 0.0})
  return made


# -- what is kept of a step


def labelled(
  kind: Kind, batch: Scored, collector: Collector, config: ConfigDict, step: int
) -> Rollouts:
  """What a reward model of that kind can learn from the samples of a step, `[N, ...]` numpy."""
  return (labelled_steps if kind.steps else labelled_pairs)(batch, collector, config, step)


def labelled_pairs(batch: Scored, collector: Collector, config: ConfigDict, step: int) -> Rollouts:
  """A better and a worse sample, by their labels, of each prompt that has both; both have stopped
  by themselves.

  A sample on which the reward failed is neither.
  """
  r = batch.rollouts
  labels = r.components[..., collector.names.index(config.iterative.labels)]
  real = (r.lengths > 0) & ~np.isnan(labels) & ~failed(batch, config.iterative.labels)
  last = last_tokens(r) & real[..., None]
  on_last = dataclasses.replace(
    r, rewards=np.where(last, labels[..., None], 0.0).astype(np.float32), given=last
  )
  return pairs.of_samples(
    on_host(batch, on_last, config), config.seed + step, complete=True
  ).rollouts


def labelled_steps(batch: Scored, collector: Collector, config: ConfigDict, step: int) -> Rollouts:
  """All samples of each prompt with a labelled step, `[N, G, ...]`; labels are rewards at the last
  tokens of steps.

  Steps have the labels that are `groups.known`.

  Raises:
    SettingError: labels that are not from 0 to 1.
  """
  name = config.iterative.labels
  label = [(name, function, 1.0) for own, function, _ in collector.rewards if own == name]
  found = score(collector._replace(rewards=label, models=[]), batch.examples, batch.rollouts)
  r, given = found.rollouts, known(found)
  if not np.all((r.rewards >= 0) & (r.rewards <= 1), where=given):
    raise SettingError(
      f"iterative.labels={name!r}: gave {r.rewards[given].min():g} to {r.rewards[given].max():g}, "
      "and labels of steps "
      "are from 0 to 1; use a reward such as steps.steps_correct"
    )
  kept = on_host(
    batch, dataclasses.replace(r, rewards=np.where(given, r.rewards, 0.0), given=given), config
  )
  return select(kept, np.flatnonzero(kept.rollouts.given.any(axis=(1, 2))).tolist()).rollouts


def on_host(batch: Scored, r: Rollouts, config: ConfigDict) -> Scored:
  """The batch with those rollouts, without empty groups, on the host, with prompts of one width in
  the whole run.
  """
  return without_empty(
    batch._replace(rollouts=widen(rollouts.to_host(r), config.data.max_prompt_length), faults=[])
  )


# -- at the end of an iteration


def earlier_steps(last: int, config: ConfigDict) -> range:
  """The steps whose samples may be replayed in the iteration that the step `last` ends."""
  cfg = config.iterative
  first = last + 1 - cfg.steps
  return range(max(0, first - cfg.kept_steps), first)


def oldest_step(saved: int, config: ConfigDict) -> int:
  """The oldest step whose samples may be read, by a run that goes on from the checkpoint `saved` or
  a later one.
  """
  cfg = config.iterative
  return saved - saved % cfg.steps - cfg.kept_steps


def teach(
  judge: Learner, kind: Kind, replay: Replay, step: int, config: ConfigDict, writer: Writer
) -> dict[str, float]:
  """Trains the reward model on the samples of the iteration that `step` ends, with a replay of
  earlier ones.

  Returns:
    Means of the updates' metrics, `reward_model/...`; how many pairs (or prompts) were new and how
    many were replayed; `new_pair_accuracy` (`new_step_accuracy`), see `agreement`.
  """
  cfg, found = config.iterative, []
  new = replay.read(range(step + 1 - cfg.steps, step + 1))
  earlier = earlier_steps(step, config)
  past = replay.read(earlier) if earlier else None
  how = {"batch": cfg.pairs, "share": cfg.replay, "epochs": cfg.epochs}
  counted = {"new": 0, "replayed": 0, "updates": 0}
  with writer.phase("agreement"):
    show = functools.partial(writer.progress, "agreement")
    agreed = (
      {agreement_name(kind): agreement(judge, kind, new, config, show)} if len(new.lengths) else {}
    )
  for lesson in lessons(new, past, seed=(config.seed, step), **how):
    learned = judge.learn(step, lesson.pairs, writer).metrics
    found.append({name: float(learned[name]) for name in kind.learned})
    add = {"new": lesson.new, "replayed": lesson.replayed, "updates": 1}
    counted = {name: counted[name] + add[name] for name in counted}
  means = (
    {name: float(np.mean([each[name] for each in found])) for name in kind.learned} if found else {}
  )
  return {f"{NAME}/{name}": value for name, value in (means | counted | agreed).items()}


def agreement_name(kind: Kind) -> str:
  """What `agreement` is called among the metrics."""
  return f"new_{kind.item}_accuracy"


def agreement(
  judge: Learner, kind: Kind, new: Rollouts, config: ConfigDict, show: Callable[[int, int], None]
) -> float:
  """The share of new pairs of which the reward model has the better one above, or of new steps that
  it says right of.

  Args:
    judge: the reward model, which has not learned from them yet.
    kind: of it.
    new: `[N, ...]`, numpy, at least one.
    config: of the run.
    show: called with how many prompts are scored, and of how many.
  """
  sizes = build.sizes(config, judge.model.layout, microbatches=1)
  scores = scores_of_all(
    judge.model.decoder, judge.params, new, sizes, config.iterative.pairs, show
  )
  if kind.steps:
    return step_scores.step_metrics(scores[new.given], new.rewards[new.given])["agreement"]
  return pair_metrics(margins(scores, new.lengths))["pair_accuracy"]


def in_words(kind: Kind, numbers: dict[str, float]) -> str:
  """How well the reward model did before it learned, of the numbers of `teach`; "" where there was
  nothing new.
  """
  agreed = numbers.get(f"{NAME}/{agreement_name(kind)}")
  return (
    ""
    if agreed is None
    else f"reward model agreed with the labels on {agreed:.0%} of its new {kind.item}s"
  )
