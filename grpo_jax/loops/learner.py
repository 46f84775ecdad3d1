"""One thing that is trained: an objective, its optimizer, its state, and the jitted update."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from grpo_jax.distributed import lifeline
from grpo_jax.errors import SettingError
from grpo_jax.learning import learn, movement, optimizer
from grpo_jax.learning import state as train_state
from grpo_jax.learning.state import TrainState
from grpo_jax.models import lora
from grpo_jax.objectives.base import Needs
from grpo_jax.packing import plan
from grpo_jax.packing.sizes import Sizes
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, parameters, registry
from grpo_jax.types import Rollouts


class Learned(NamedTuple):
  """What an update did."""

  metrics: dict[str, Any]  # numbers, on the host
  trace: learn.Trace  # what it started from, on the device
  # log-probs of the completions before and after it, [P, G] each; None: not measured
  moved: tuple[Any, Any] | None


class Learner:
  """A policy (or a policy and a critic, or a reward model) that learns by one objective.

  `state` is what the update changes and a checkpoint holds; `ref_params` is the reference's (or
  teacher's) tree, None for an objective without one; `base` is what adapters stand on, None without
  them. `start` or a checkpoint sets `state`, and `load_reference` sets the others.
  """

  PHASE = "learn"  # as which an update is shown and timed
  RATE = "learner.lr"  # the setting of its learning rate
  METRICS = ""  # before the names of its metrics
  state: TrainState
  ref_params: Any = None
  base: Any = None

  def __init__(
    self, config: ConfigDict, model: build.Model, temperature: float, sizes: Sizes | None = None
  ):
    """Makes the jitted functions; nothing is loaded or compiled yet.

    Args:
      config: `objective`, `learner`, `steps`, `ref_from`, `log.measure_every`.
      model: the policy.
      temperature: at which the log-probs of completions are taken: the sampler's, if the policy
        sampled them.
      sizes: of programs, also of the sampler whose batches it learns from; None: its own.

    Raises:
      SettingError: no such objective, or settings that it refuses.
    """
    self.config, self.model, self.cfg = config, model, config.learner
    objective = registry.configured(config.objective)
    self.needs = objective.needs
    if Needs.REFERENCE in self.needs:
      build.check_source(config.ref_from, model, "ref_from")
    updates = config.steps * config.learner.mu * config.learner.minibatches
    self.rate = optimizer.schedule(config.learner, updates)
    self.tx = optimizer.make_optimizer(config.learner, updates, critic=Needs.CRITIC in self.needs)
    setup = learn.Setup(model.decoder, objective, self.tx, config.learner, temperature)
    self.jitted_learn, self.jitted_movement = learn.make_learn(setup), movement.make_movement(setup)
    self.sizes = sizes or build.sizes(config, model.layout)
    if objective.trains_reward_model != model.decoder.config.scores:
      raise ValueError(
        f"{config.objective.name} with a model whose scores={model.decoder.config.scores}"
      )
    # tokens have no probability there
    self.measure_every = 0 if objective.trains_reward_model else config.log.measure_every

  @property
  def params(self) -> Any:
    """The parameters of the policy or the reward model, with the base of adapters, if there are
    any, and those.
    """
    return lora.join(self.base, self.trained)

  @property
  def trained(self) -> Any:
    """What of these parameters an update changes."""
    return self.state.model

  def abstract(self) -> TrainState:
    """The shapes, dtypes and shardings of the state; nothing is allocated."""
    params = parameters.abstract_params(self.model.decoder, Needs.CRITIC in self.needs)
    return train_state.abstract(params, self.tx)

  def start(self) -> None:
    """Takes the policy's starting parameters, and a fresh optimizer; where there are adapters,
    their base, too.
    """
    model = self.model.load()
    if self.model.decoder.lora is not None:
      self.base, with_heads = lora.split(model)
      key = build.key(self.config.seed, build.ADAPTERS, 0)
      model = parameters.fresh_adapters(self.model.decoder, with_heads, key)
    params = parameters.params(self.model.decoder, model, Needs.CRITIC in self.needs)
    self.state = train_state.create(params, self.tx)

  def load_reference(self, pin: dict[str, Any]) -> dict[str, Any]:
    """Loads the reference, where the objective needs one, and the base of adapters, where there are
    any.

    They are not saved, but read again from their sources. The base is the reference, too, if
    `ref_from` names no other.

    Args:
      pin: the step and the fingerprint of the reference, as the checkpoint keeps them; {} in a
        fresh run.

    Returns:
      What a checkpoint keeps, so that the run never goes on with another reference or base; {}
      without one.

    Raises:
      SettingError: the source holds other parameters than when the run began.
    """
    pinned = self.load_base(pin)
    if Needs.REFERENCE not in self.needs:
      return pinned
    if self.base is not None and not self.config.ref_from:
      self.ref_params = {}  # nothing over the base
      return pinned
    self.ref_params, reference = build.pinned_reference(self.config, self.model, pin)
    return pinned | reference

  def load_base(self, pin: dict[str, Any]) -> dict[str, Any]:
    """Loads the base of adapters, where there are any; arguments and errors: see `load_reference`."""
    if self.model.decoder.lora is None:
      return {}
    if self.base is None:  # `start` has read it in a fresh run
      self.base = lora.split(self.model.load())[0]
    return parameters.check_base(self.base, pin, self.config.init_from)

  def learn(self, step: int, batch: Rollouts, writer: Writer, old_params: Any = None) -> Learned:
    """Learns from rollouts; every `log.measure_every` steps it measures how their probabilities
    moved.

    Args:
      step: of the run.
      batch: sampled (see rollouts.py), or all numpy; with rewards, where the objective asks for
        them.
      writer: shows the phases.
      old_params: the policy that sampled them, where it is not the one in `state`.
    """
    lifeline.compare(batch.prompts, batch.tokens)
    batch, packing = self.sizes.for_learner(batch)
    on_mesh = rollouts.to_device(self.model.layout, (batch, packing))
    with writer.phase(self.PHASE, on_mesh):
      self.state, found, trace = self.jitted_learn(
        self.state, self.ref_params, old_params, *on_mesh, self.base
      )
      found = rollouts.to_host(found)
    moved = None
    if self.measure_every and step % self.measure_every == 0:
      with writer.phase("measure", on_mesh):
        measured = self.jitted_movement(self.state.params, on_mesh[0], trace, on_mesh[1], self.base)
        more, *moved = rollouts.to_host(measured)
      found |= more
    found |= rollouts.statistics(batch) | plan.padding(
      batch, packing, self.model.layout, self.sizes.microbatches
    )
    found |= {"lr": self.rate(self.state.step - 1), "skipped_steps": int(self.state.skipped)}
    return Learned(found, trace, tuple(moved) if moved else None)

  def check_finite(self, found: dict[str, Any], safe: Callable[[], str]) -> None:
    """Ends a run in which nothing is finite any more.

    Args:
      found: metrics of the last update, under the names of `METRICS`.
      safe: returns what is saved, for the message.

    Raises:
      SettingError: `learner.max_bad_steps` updates in a row were not finite.
    """
    bad = int(self.state.bad_steps)
    if bad >= self.cfg.max_bad_steps:
      loss, norm = (
        float(found.get(self.METRICS + name, math.nan)) for name in ("loss", "grad_norm")
      )
      raise SettingError(
        f"{self.RATE}={self.cfg.lr}: {bad} updates in a row were not finite (loss {loss}, gradient "
        f"norm {norm}); a "
        f"lower one may work; {safe()}"
      )
