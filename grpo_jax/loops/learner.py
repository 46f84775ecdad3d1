"""Trains a policy or a reward model: its objective, optimizer, state and jitted update."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed import lifeline
from grpo_jax.errors import TrainingError
from grpo_jax.learning import entropy_control, learn, movement, optimizer, passes
from grpo_jax.learning import state as train_state
from grpo_jax.learning.entropy_control import Control
from grpo_jax.learning.movement import Movement
from grpo_jax.learning.state import TrainState
from grpo_jax.models import lora
from grpo_jax.models.decoder import Params
from grpo_jax.objectives.base import Needs, reads_reference
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.sizes import Sizes
from grpo_jax.run.writer import Number, Writer
from grpo_jax.sampling import rollouts
from grpo_jax.setup import adapters, build, parameters, references
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import KnownRollouts, Prompts

# Programs that stay loaded. One on a CPU takes about a thousand of the 65,530 mappings of memory
# that Linux gives a process, and LLVM crashes at the next after the last.
PROGRAMS = 16


class Learned(NamedTuple):
  """Result of an update."""

  metrics: dict[str, Number]  # on the host
  trace: learn.Trace  # where the update started, on the device
  # its metrics and what has an entry for each completion are on the host; None: not measured
  moved: Movement | None
  seconds: float


class Learner:
  """Trains a policy (with a critic if the objective needs one) or a reward model.

  `state` is changed by updates and saved in checkpoints; `ref_params` is the tree of the reference
  or teacher, None for an objective without one; `base` is the tree under adapters, None without
  them. `start` or a checkpoint sets `state`, and `load_reference` sets the others.
  """

  PHASE = "learn"  # the name under which an update is shown and timed
  RATE = "learner.lr"  # the setting of the learning rate
  METRICS = ""  # prefix of the names of the metrics in a run's log
  state: TrainState
  ref_params: Params | None = None
  base: Params | None = None
  entropy: Control | None = None  # of the weight of the entropy bonus, if that is adapted

  def __init__(
    self, experiment: Experiment, model: build.Model, temperature: float, sizes: Sizes | None = None
  ):
    """Makes the jitted functions; nothing is loaded or compiled yet.

    Args:
      experiment: `objective`, `learner`, `steps`, `ref_from`, `log.measure_every` are read.
      model: the model to train.
      temperature: of the log-probs: the sampler's if the policy sampled the completions.
      sizes: of programs, shared with the sampler that makes the batches; None: its own.
    """
    self.experiment, self.model, self.cfg = experiment, model, experiment.learner
    objective, self.teacher = experiment.objective, model
    self.needs = objective.needs
    if reads_reference(self.needs):
      self.teacher = references.owner(experiment, model)
      if not experiment.reference.ema:  # one that moves is saved: only a fresh run reads the folder
        references.check(experiment, experiment.ref_from, self.teacher, "ref_from")
    updates = experiment.steps * experiment.learner.mu * experiment.learner.minibatches
    self.rate = optimizer.schedule(experiment.learner, updates)
    self.tx = optimizer.make_optimizer(
      experiment.learner, updates, critic=Needs.CRITIC in self.needs
    )
    setup = passes.Setup(model.decoder, objective, self.tx, experiment.learner, temperature)
    if self.teacher.decoder.config != model.decoder.config:
      setup = dataclasses.replace(setup, ref_decoder=self.teacher.decoder)
    self.jitted_learn, self.jitted_movement = learn.make_learn(setup), movement.make_movement(setup)
    self.sizes = sizes or build.sizes(experiment, model.layout)
    if self.cfg.entropy_target and "entropy_bonus" in objective.cfg:
      self.entropy = Control(objective.cfg.entropy_bonus)
    # of the teacher's own prompts: few, since each of them goes with each of the policy's
    most = self.sizes.most or build.SIZES
    longest = experiment.reference.max_prompt_length
    self.teacher_sizes = Sizes(most, model.layout, longest, self.sizes.microbatches)
    if objective.trains_reward_model != model.decoder.config.scores:
      raise ValueError(
        f"{experiment.objective.name} with a model whose scores={model.decoder.config.scores}"
      )
    # a reward model gives tokens no probability that could move
    self.measure_every = 0 if objective.trains_reward_model else experiment.log.measure_every

  @property
  def params(self) -> Params:
    """All parameters: the base under adapters, if there are any, and `trained`."""
    return lora.join(self.base, self.trained)

  @property
  def trained(self) -> Params:
    """Only the parameters that updates change."""
    return self.state.model

  def abstract(self) -> TrainState:
    """Returns the shapes, dtypes and shardings of the state; nothing is allocated."""
    params = parameters.abstract_params(self.model.decoder, Needs.CRITIC in self.needs)
    return train_state.abstract(params, self.tx)

  def start(self) -> None:
    """Loads the starting parameters (and the base under adapters) and makes a fresh optimizer."""
    model = self.model.load()
    if self.model.decoder.lora is not None:
      self.base, with_heads = lora.split(model)
      key = build.key(self.experiment.seed, build.ADAPTERS, 0)
      model = adapters.fresh_adapters(self.model.decoder, with_heads, key)
    params = parameters.params(self.model.decoder, model, Needs.CRITIC in self.needs)
    self.state = train_state.create(params, self.tx)

  def load_reference(self, pin: Json) -> Json:
    """Loads the reference if the objective needs one, and the base if there are adapters.

    Neither is saved; both are read again from their sources. Without `ref_from` the base is the
    reference.

    Args:
      pin: the step and the fingerprints that a checkpoint keeps of them; {} in a fresh run.

    Returns:
      What a checkpoint keeps, so that a run never resumes with another reference or base.
    """
    pinned = self.load_base(pin)
    if not reads_reference(self.needs):
      return pinned
    if self.base is not None and not self.experiment.ref_from:
      self.ref_params = {}  # nothing over the base
      return pinned
    self.ref_params, reference = references.pinned_reference(self.experiment, self.teacher, pin)
    return pinned | reference

  def load_base(self, pin: Json) -> Json:
    """Loads the base if there are adapters; see `load_reference`."""
    if self.model.decoder.lora is None:
      return {}
    if self.base is None:  # `start` has read it in a fresh run
      self.base = lora.split(self.model.load())[0]
    return adapters.check_base(self.base, pin, self.experiment.init_from)

  def get_sizes(self) -> Json:
    """Returns the sizes of the programs made so far, and the weight of the entropy, as JSON."""
    sizes = self.sizes.get_state() | {"teacher_prompts": self.teacher_sizes.get_state()}
    return sizes | {"entropy": dataclasses.asdict(self.entropy)} if self.entropy else sizes

  def set_sizes(self, sizes: Json) -> None:
    """Resumes with the sizes that `get_sizes` returned."""
    self.sizes.set_state(sizes)
    self.teacher_sizes.set_state(sizes.get("teacher_prompts", {}))
    if self.entropy and "entropy" in sizes:
      self.entropy = Control(**sizes["entropy"])

  def learn(
    self, step: int, batch: KnownRollouts, writer: Writer, old_params: Params | None = None
  ) -> Learned:
    """Learns from rollouts; every `log.measure_every` steps measures how far they moved.

    Args:
      step: of the run.
      batch: sampled or on the host; with rewards if the objective needs them.
      writer: shows the phases.
      old_params: the policy that sampled them, if it is not the one in `state`.
    """
    # ends the run if hosts drew different prompts
    lifeline.compare(batch.prompts, batch.tokens, batch.ref_prompts)
    batch, packing, ref_packing = self.packed(batch)
    on_mesh = rollouts.to_device(self.model.layout, (batch, packing, ref_packing))
    bonus = self.entropy and entropy_control.bonus(self.entropy, self.cfg.entropy_target)
    with writer.phase(self.PHASE, on_mesh) as timer:
      self.state, on_device, trace = self.jitted_learn(
        self.state, self.ref_params, old_params, *on_mesh[:2], self.base, on_mesh[2], bonus
      )
      metrics = rollouts.to_host(on_device)
    bound_programs(self.jitted_learn)
    for about, text in doubts(metrics).items():
      writer.warn(
        about, f"step {step + 1}: {text} (objective.name={self.experiment.objective.name!r})"
      )
    if "mismatch_square" in metrics:
      metrics["mismatch_ess"] = effective_share(metrics["mismatch"], metrics.pop("mismatch_square"))
    moved = None
    if self.measure_every and step % self.measure_every == 0:
      with writer.phase("measure", on_mesh):
        moved = self.jitted_movement(self.state.params, on_mesh[0], trace, on_mesh[1], self.base)
        known = rollouts.to_host((moved.metrics, moved.before, moved.after))
      moved = Movement(*known, *moved[3:])
      # NaN: nothing had an advantage
      metrics |= {name: value for name, value in moved.metrics.items() if not np.isnan(value)}
    if self.entropy and bonus is not None and batch.lengths.any():
      metrics["entropy_weight"] = bonus
      aim = self.cfg.entropy_target, self.cfg.entropy_step, self.cfg.entropy_max
      self.entropy = entropy_control.after(self.entropy, float(metrics["entropy"]), *aim)
    metrics |= rollouts.statistics(batch)
    metrics |= plan.padding(batch, packing, self.model.layout, self.sizes.microbatches)
    # of the last update: the schedule counts from 0
    metrics |= {"lr": self.rate(self.state.step - 1), "skipped_steps": int(self.state.skipped)}
    return Learned(metrics, trace, moved, timer.seconds)

  def packed(self, batch: KnownRollouts) -> tuple[KnownRollouts, Packing, Packing | None]:
    """Returns the batch in the width of a program, its packing, and that of the teacher's own
    prompts; None: it has none.
    """
    batch, own = self.sizes.for_learner(batch)
    prompts = batch.ref_prompts
    if prompts is None:
      return batch, own, None
    # of the tokens only the shape is read, and they are on the mesh
    tokens = np.broadcast_to(np.int32(0), batch.tokens.shape)
    flat = passes.asked_of_teacher(dataclasses.replace(batch, tokens=tokens))
    flat, packing = self.teacher_sizes.for_learner(flat)
    tokens = flat.prompts.tokens.reshape(*prompts.lengths.shape, -1)
    return dataclasses.replace(batch, ref_prompts=Prompts(tokens, prompts.lengths)), own, packing

  def check_finite(self, metrics: Mapping[str, Number], safe: Callable[[], str]) -> None:
    """Ends a run after `learner.max_bad_steps` updates in a row that were not finite.

    Args:
      metrics: of the last update, with the prefix `METRICS`.
      safe: returns what is saved, for the message.
    """
    bad = int(self.state.bad_steps)
    if bad >= self.cfg.max_bad_steps:
      names = {"loss": "loss", "grad_norm": "gradient norm", "critic_grad_norm": "of the critic"}
      shown = ", ".join(
        f"{words} {float(metrics.get(self.METRICS + name, math.nan))}"
        for name, words in names.items()
        if name != "critic_grad_norm" or self.METRICS + name in metrics
      )
      raise TrainingError(
        f"{self.RATE}={self.cfg.lr}: {bad} updates in a row were not finite ({shown}); a lower one "
        f"may work; {safe()}"
      )


def doubts(metrics: Mapping[str, Number]) -> dict[str, str]:
  """Returns what a run is warned of after an update, by what it is about."""
  found = {}
  if metrics.get("grad_norm") == 0 and metrics.get("advantage_abs", 0) > 0:
    found["no gradient"] = (
      "the gradient is exactly 0, though tokens have advantages, so that nothing was trained: does "
      "the loss compare the policy with itself, leave out all tokens, or has it reached its aim?"
    )
  odd = [name for name, value in metrics.items() if not np.isfinite(value)]
  if odd and np.isfinite(metrics.get("loss", math.nan)):  # others are updates that are skipped
    found["odd metrics"] = (
      f"the loss is finite, and of its metrics {', '.join(odd)} are not: null in metrics.jsonl"
    )
  return found


def effective_share(mean: float, mean_square: float) -> float:
  """Returns the effective sample size of weights, as a share of their number: 1 if all are equal.

  It is (sum w)^2 / (n sum w^2) (Kong, 1992), of weights with this mean and mean of squares.
  """
  return float(mean) ** 2 / float(mean_square) if mean_square else math.nan


def bound_programs(jitted: Any) -> None:
  """Unloads the programs of a jitted function once there are PROGRAMS of them.

  What is called again is read from the compilation cache, or compiled again if there is none.
  """
  if jitted._cache_size() >= PROGRAMS:
    jitted.clear_cache()
