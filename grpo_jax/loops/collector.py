"""Builds the collector of a run: its data, sampler, rewards and reward models."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax

from grpo_jax.data.pool import Pool
from grpo_jax.loops import carried, reward_workers
from grpo_jax.loops.carried import Carrier
from grpo_jax.loops.protocols import Data
from grpo_jax.loops.reward_workers import RewardWorkers
from grpo_jax.objectives.base import ConfiguredObjective
from grpo_jax.reward_models import load
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.sampling import sampler
from grpo_jax.sampling.generate import Generator
from grpo_jax.setup import build, environments, solutions
from grpo_jax.setup.experiment import ENVIRONMENT, Experiment, changed
from grpo_jax.types import Example, Rollouts


class Batches(Data, Protocol):
  """Batches of problems to sample for."""

  def __next__(self) -> list[Example]:
    """Returns P examples."""
    ...

  def first(self, count: int, /) -> list[Example]:
    """Returns the first examples of the whole order; the position stays."""
    ...


class Collector(NamedTuple):
  """Draws and scores batches. Only `batches` and `generator.sizes` change."""

  batches: Batches
  generator: Generator
  rewards: Sequence[tuple[str, Callable, float]]  # name, function, weight
  models: Sequence[RewardModel]  # their rewards are added to those
  ahead: Sequence[Callable]  # called with a batch before it is scored
  flat: Callable[[Rollouts], jax.Array]  # which groups teach nothing, [P] bool
  on_error: float  # the value of a reward that fails
  deadline: float  # seconds that a reward may take for a completion, or for a group
  max_length: int  # L
  prompts: int  # P
  tries: int  # above 1: dynamic sampling, see `collect`
  rule: str = ""  # name of the reward that reward models are compared with; "" if there is none
  solved: str = ""  # name of the reward whose results the pool keeps; "" if there is no pool
  played: float = 1.0  # weight of the environment's rewards
  discount: float = 1.0  # of turn k they count discount^(k - 1) times
  minibatches: int = 1  # of the learner: its order of the groups leaves each in its own
  carrier: Carrier | None = None  # gives the completions, see carried.py; None: `generate` does
  workers: RewardWorkers | None = None  # that give rewards; None: this process does

  @property
  def names(self) -> list[str]:
    """Names of all reward components, N."""
    played = [] if self.generator.environment is None else [ENVIRONMENT]
    return [name for name, _, _ in self.rewards] + played + self.learned

  @property
  def data(self) -> Data:
    """Returns what checkpoints save: the position in the data, with what is carried."""
    return self.carrier or self.batches

  @property
  def learned(self) -> list[str]:
    """Names of the components that reward models give."""
    return [model.name for model in self.models]


def make_collector(experiment: Experiment, model: build.Model) -> Collector:
  """Makes the collector of the training data."""
  return _without_models(experiment, model)._replace(models=load.load(experiment, model))


def check_collector(experiment: Experiment, model: build.Model, absent: str = "") -> None:
  """Refuses what `make_collector` would, but reads no weights of reward models.

  Args:
    experiment: of the run.
    model: the policy.
    absent: a folder that an earlier run will write; a reward model from there is let through.
  """
  _without_models(experiment, model)
  load.find(experiment, model, absent)


def _without_models(experiment: Experiment, model: build.Model) -> Collector:
  """Makes the collector without its reward models."""
  d, s = experiment.data, experiment.sampler
  batches = make_batches(experiment, model)
  rewards = [(each.name, each.reward.score, each.weight) for each in experiment.reward_functions]
  ahead = [each.reward.score_ahead for each in experiment.reward_functions]
  # a reward may fail on a solution and still work on samples: only a SettingError ends the run
  for _, reward, _ in rewards:
    solutions.try_reward(reward, batches.first(solutions.FIRST_SOLUTIONS), model, experiment)
  sample = sampler.make_sampler(model.decoder, s, model.stop, model.stop_table)
  sizes = build.sizes(experiment, model.layout)
  return Collector(
    batches=batches,
    generator=environments.make_generator(experiment, model, sample, sizes),
    rewards=rewards,
    models=[],
    ahead=[score for score in ahead if score],
    flat=jitted_flat(experiment.objective),
    on_error=experiment.rewards.on_error,
    deadline=experiment.rewards.deadline,
    max_length=s.max_length,
    prompts=d.prompts,
    tries=s.tries,
    rule=experiment.rule,
    solved=experiment.checked if d.redraw < 1 else "",
    played=experiment.environment.weight,
    discount=experiment.environment.discount,
    minibatches=experiment.learner.minibatches,
    carrier=make_carrier(experiment, batches),
    workers=make_workers(experiment, batches),
  )


def make_workers(experiment: Experiment, examples: Batches) -> RewardWorkers | None:
  """Makes the processes that score; None: this one does."""
  if experiment.rewards.workers:
    reward_workers.check_json(examples.first(solutions.FIRST_SOLUTIONS))
  return reward_workers.make(experiment)


def make_carrier(experiment: Experiment, examples: Batches) -> Carrier | None:
  """Makes what carries groups over an update, from examples one by one; None without it."""
  s = experiment.sampler
  if not s.carry:
    return None
  carried.check_json(examples.first(solutions.FIRST_SOLUTIONS))
  return Carrier(
    examples,
    build.key(experiment.seed, build.CARRY, 0),
    prompts=experiment.data.prompts,
    carry=s.carry,
    max_age=s.max_age,
  )


def make_batches(experiment: Experiment, model: build.Model) -> Batches:
  """Makes the batches to sample for, from a pool of prompts where `data.redraw` is below 1.

  With `sampler.carry` a batch is one example.
  """
  d, carries = experiment.data, experiment.sampler.carry > 0
  if d.redraw == 1 and not carries:
    return build.batches(experiment, model)
  single = build.batches(changed(experiment, {"data.prompts": 1}), model)
  if d.redraw == 1:
    return single
  return Pool(single, 1 if carries else d.prompts, d.redraw, experiment.seed)


@functools.cache
def jitted_flat(objective: ConfiguredObjective) -> Callable[[Rollouts], jax.Array]:
  """Returns the objective's `flat`, jitted once for the same settings."""
  return jax.jit(objective.flat)
