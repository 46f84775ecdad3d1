"""Iterative GRPO: Algorithm 1 of DeepSeekMath (arXiv 2402.03300), with a reward model that goes on learning.

    for iteration = 1, ..., I:
      reference <- policy                                                               (line 3)
      for step = 1, ..., M:
        sample a batch of prompts, and G completions of each from the policy            (lines 5 to 7)
        rewards of the completions by the reward model                                  (line 8)
        advantages relative to the group, then mu updates of the policy                 (lines 9 to 11)
      train the reward model on the policy's samples, and on some of earlier ones       (line 12)

What is better among samples, which the reward model learns from, is said by the reward that `iterative.labels` names,
such as a check of the answer; its weight among the rewards of the policy may be 0. Policy, reward model and reference
are saved together, so a run that was killed in any of these phases goes on with the same numbers.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from grpo_jax import metrics, rollouts, storage
from grpo_jax import state as train_state
from grpo_jax.errors import SettingError
from grpo_jax.loops import build, checks, imports, pairs, scorers
from grpo_jax.loops.collect import Collector, Scored, collect, make_collector, widen
from grpo_jax.loops.evaluator import Evaluator
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import without_empty
from grpo_jax.loops.online import sample_rows, speeds
from grpo_jax.loops.replay import Replay, lessons
from grpo_jax.loops.run import Run
from grpo_jax.model_rewards import RewardModel
from grpo_jax.models.hf import tensors
from grpo_jax.state import TrainState
from grpo_jax.types import Rollouts

NAME = "reward_model"  # of the learner, and of its reward among the others
LEARNED = ("loss", "pair_accuracy", "reward_margin", "grad_norm", "lr")  # of the reward model's updates, as logged


def train(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  check(config)
  model = build.model(config)
  checks.check(config, model.decoder, imports.objective(config.objective.name))
  judged_by = of_reward_model(config)
  check_pairs(config, model)
  judge = Learner(judged_by, build.model(judged_by, scores=True), 1.0)
  collector = make_collector(config, model)
  policy = Policy(config, model, config.sampler.temperature, collector.generator.sizes)
  reference, replay, cfg = Reference(model), Replay(workdir), config.iterative
  learners = {"policy": policy, NAME: judge, "reference": reference}
  models = functools.partial(asked_models, collector.models, judge, cfg.weight)
  evaluator = Evaluator(config, model, models)

  with Run(config, workdir, model, collector.batches, learners, evaluator, collector.rule) as run:
    for step in run.steps():
      iteration, of_iteration = divmod(step, cfg.steps)
      if of_iteration == 0:
        reference.take(policy.params)
        replay.forget(oldest_step(run.checkpoints.oldest(), config))
      policy.ref_params = reference.params
      asked = collector._replace(models=models())
      batch, sampling = collect(asked, policy.params, build.key(config.seed, build.SAMPLE, step), run.writer)
      replay.add(step, labelled_pairs(batch, asked, config, step))
      learned = policy.learn(step, batch.rollouts, run.writer)
      numbers = learned.metrics | sampling | {"iteration": iteration + 1}
      numbers |= speeds(numbers["tokens"], int(batch.rollouts.lengths.sum()), run.writer.seconds)
      if of_iteration == cfg.steps - 1:
        numbers |= teach(judge, replay, step, config, run.writer)
      run.writer.samples(step + 1, sample_rows(batch, learned, config.log.samples, asked, model))
      run.log(step, numbers)
      run.after(step)
    run.finish()
    if config.checkpoint.export and not run.stopped:
      export(judge, workdir, run.writer)


def asked_models(others: Sequence[RewardModel], judge: Learner, weight: float) -> list[RewardModel]:
  """The reward models that score samples: others, and the one that learns, as it is now."""
  return [*others, RewardModel(NAME, weight, False, judge.model.decoder, judge.params)]


def check(config: ConfigDict) -> None:
  """Refuses settings of the loop that do not go together.

  Raises:
    SettingError: names the setting and what would work.
  """
  labels, names = config.iterative.labels, [name for name, *_ in config.rewards.functions]
  if labels not in names:
    raise SettingError(f"iterative.labels={labels!r}: use the name of one of rewards.functions, {', '.join(names)}")
  if NAME in scorers.reward_names(config.rewards):
    raise SettingError(f"rewards has {NAME!r}, which is the name of the reward model that learns: use another")


def check_pairs(config: ConfigDict, model: build.Model) -> None:
  """Refuses batches of pairs that the mesh does not divide.

  Raises:
    SettingError: names the setting and what would work.
  """
  shards, samples = model.layout.size("prompt"), model.layout.size("sample")
  if config.iterative.pairs % shards:
    raise SettingError(f"iterative.pairs={config.iterative.pairs}: use a multiple of {shards}, the shards of the mesh")
  if 2 % samples:
    raise SettingError(f"mesh.group={samples} with loop='iterative', whose pairs are two samples: use 1 or 2")


def export(judge: Learner, workdir: str, writer: metrics.Writer) -> None:
  """Writes the reward model to DIR/reward_model, a Hugging Face folder."""
  with writer.phase("export"):
    out = storage.place(workdir) / NAME
    tensors.save(out, judge.model.decoder.config, judge.params, tokenizer=judge.model.tokenizer)


class Policy(Learner):
  """The policy of an iterative run: its reference is a part of the run, not of a folder."""

  def load_reference(self, pin: dict[str, Any]) -> dict[str, Any]:
    """Returns {}: the loop sets `ref_params`."""
    del pin
    return {}


class Reference:
  """The policy as it was when an iteration began, saved and restored with the learners of a run; it is not trained."""

  state: TrainState

  def __init__(self, model: build.Model):
    """Makes nothing yet."""
    self.model, self.tx, self.sizes = model, optax.identity(), NoPrograms()

  @property
  def params(self) -> Any:
    """The reference's parameters."""
    return self.state.params["policy"]

  def abstract(self) -> TrainState:
    """The shapes, dtypes and shardings of the state; nothing is allocated."""
    return train_state.abstract({"policy": build.abstract(self.model.decoder)}, self.tx)

  def start(self) -> None:
    """Takes the policy's starting parameters."""
    self.state = train_state.create({"policy": self.model.load()}, self.tx)

  def take(self, params: Any) -> None:
    """Takes a copy of parameters, which an update of their owner would free."""
    self.state = dataclasses.replace(self.state, params={"policy": jitted_copy(params)})

  def load_reference(self, pin: dict[str, Any]) -> dict[str, Any]:
    """Returns {}: it needs none."""
    del pin
    return {}

  def check_finite(self, *_: Any) -> None:
    """Does nothing: it is not trained."""


class NoPrograms:
  """The sizes of what has no programs."""

  def get_state(self) -> dict[str, Any]:
    """Returns {}."""
    return {}

  def set_state(self, state: dict[str, Any]) -> None:
    """Does nothing."""


@jax.jit
def jitted_copy(params: Any) -> Any:
  """Returns a copy of a tree, in the same shardings."""
  return jax.tree.map(jnp.copy, params)


def of_reward_model(config: ConfigDict) -> ConfigDict:
  """The config that the reward model is built and trained by."""
  cfg, made = config.iterative, config.copy_and_resolve_references()
  made.init_from = cfg.reward_model or config.init_from
  if made.init_from:
    made.model.variant = ""
  made.objective = ConfigDict({"name": NAME, **imports.objective(NAME).settings()})
  made.data.prompts = cfg.pairs
  own = {"lr": cfg.reward_model_lr, "schedule": "constant", "warmup": 0, "mu": 1, "minibatches": 1, "microbatch": 0}
  made.learner.update(own | {"stop_reached": 0.0, "stop_surrogate": 0.0, "stop_kl": 0.0})
  return made


def labelled_pairs(batch: Scored, collector: Collector, config: ConfigDict, step: int) -> Rollouts:
  """A better and a worse sample, by their labels, of each prompt that has both; both have stopped by themselves."""
  r = batch.rollouts
  labels = r.components[..., collector.names.index(config.iterative.labels)]
  real = (r.lengths > 0) & ~np.isnan(labels)
  last = (np.arange(r.tokens.shape[2]) == r.lengths[..., None] - 1) & real[..., None]
  labelled = dataclasses.replace(r, rewards=np.where(last, labels[..., None], 0.0).astype(np.float32), given=last)
  on_host = batch._replace(rollouts=widen(rollouts.to_host(labelled), config.data.max_prompt_length))
  return pairs.of_samples(without_empty(on_host), config.seed + step, complete=True).rollouts


def earlier_steps(last: int, config: ConfigDict) -> range:
  """The steps whose pairs may be replayed in the iteration that the step `last` ends."""
  cfg = config.iterative
  first = last + 1 - cfg.steps
  return range(max(0, first - cfg.kept_steps), first)


def oldest_step(saved: int, config: ConfigDict) -> int:
  """The oldest step whose pairs may still be read, by a run that goes on from the checkpoint `saved` or a later one."""
  cfg = config.iterative
  return saved - saved % cfg.steps - cfg.kept_steps


def teach(judge: Learner, replay: Replay, step: int, config: ConfigDict, writer: metrics.Writer) -> dict[str, float]:
  """Trains the reward model on the pairs of the iteration that `step` ends, with a replay of earlier ones.

  Returns:
    Means of the updates' metrics, `reward_model/...`; how many pairs were new and how many were replayed.
  """
  cfg, found = config.iterative, []
  new = replay.read(range(step + 1 - cfg.steps, step + 1))
  earlier = earlier_steps(step, config)
  past = replay.read(earlier) if earlier else None
  how = {"batch": cfg.pairs, "share": cfg.replay, "epochs": cfg.epochs}
  counted = {"new": 0, "replayed": 0, "updates": 0}
  for lesson in lessons(new, past, seed=(config.seed, step), **how):
    learned = judge.learn(step, lesson.pairs, writer).metrics
    found.append({name: float(learned[name]) for name in LEARNED})
    add = {"new": lesson.new, "replayed": lesson.replayed, "updates": 1}
    counted = {name: counted[name] + add[name] for name in counted}
  means = {name: float(np.mean([each[name] for each in found])) for name in LEARNED} if found else {}
  return {f"{NAME}/{name}": value for name, value in (means | counted).items()}
