"""Keeps a reference that is part of a run: it changes with the policy, and checkpoints hold it.

It is a tree in the policy's shardings, with adapters that of the adapters alone. The loop
`iterative` takes a copy of the policy at the start of each iteration. With `reference.ema` the
loop `online` moves it towards the policy after each step:

    reference <- reference + ema (policy - reference)
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import optax

from grpo_jax.aliases import Json
from grpo_jax.learning import state as train_state
from grpo_jax.learning.state import TrainState
from grpo_jax.loops.learner import Learner
from grpo_jax.models import lora
from grpo_jax.models.decoder import Params
from grpo_jax.run.writer import Number
from grpo_jax.setup import parameters, references


class Policy(Learner):
  """Trains a policy whose reference is part of the run."""

  def start(self) -> None:
    """Refuses a bad `ref_from`, which a resumed run does not read, and starts as a learner does."""
    references.check(self.experiment, self.experiment.ref_from, self.teacher, "ref_from")
    super().start()

  def load_reference(self, pin: Json) -> Json:
    """Loads the base under adapters, if there are any; the loop sets `ref_params`."""
    return self.load_base(pin)


class Reference:
  """Keeps a copy of a policy that was; saved like a learner."""

  state: TrainState

  def __init__(self, policy: Learner):
    """Makes nothing yet; `policy` must be started before this."""
    self.policy, self.tx = policy, optax.identity()

  @property
  def params(self) -> Params:
    """All parameters of the reference, the base under adapters included."""
    return lora.join(self.policy.base, self.trained)

  @property
  def trained(self) -> Params:
    """Copy of the policy's trained parameters."""
    return self.state.model

  def abstract(self) -> TrainState:
    """Returns the shapes, dtypes and shardings of the state; nothing is allocated."""
    params = parameters.abstract_params(self.policy.model.decoder, critic=False)
    return train_state.abstract(params, self.tx)

  def start(self) -> None:
    """Takes the parameters of `ref_from`, or a copy of those that the policy starts with."""
    source = self.policy.experiment.ref_from
    if source:
      tree = references.reference(source, self.policy.model, "ref_from")
    else:
      tree = parameters.copy(self.policy.trained)
    self.state = train_state.create({train_state.MODEL: tree}, self.tx)

  def take(self, params: Params) -> None:
    """Takes a copy of parameters, which an update of their owner would free."""
    self.state = dataclasses.replace(
      self.state, params={train_state.MODEL: parameters.copy(params)}
    )

  def move(self, params: Params, share: float) -> None:
    """Moves to `params` by this share of the way; with 1 it is a copy of them."""
    tree = jitted_move(self.trained, params, share)
    self.state = dataclasses.replace(self.state, params={train_state.MODEL: tree})

  def load_reference(self, pin: Json) -> Json:
    """Returns {}: it is saved as a whole."""
    del pin
    return {}

  def get_sizes(self) -> Json:
    """Returns {}: it has no programs."""
    return {}

  def set_sizes(self, sizes: Json) -> None:
    """Does nothing: it has no programs."""

  def check_finite(self, metrics: Mapping[str, Number], safe: Callable[[], str]) -> None:
    """Does nothing: it is not trained."""


def move(old: Params, new: Params, share: jax.Array | float) -> Params:
  """Returns old + share (new - old) of each parameter; `new` itself where share is 1."""
  return jax.tree.map(lambda a, b: (1.0 - share) * a + share * b, old, new)


jitted_move = jax.jit(move, donate_argnums=0)
