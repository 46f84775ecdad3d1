"""Describes the parts that `Run` saves and restores: data with a position, and trained models."""

from collections.abc import Callable, Mapping
from typing import Protocol

from grpo_jax.aliases import Json
from grpo_jax.learning.state import TrainState
from grpo_jax.models.decoder import Params
from grpo_jax.run.writer import Number
from grpo_jax.setup import depends
from grpo_jax.types import HostRollouts


class Data(depends.Contents, Protocol):
  """Data with a position that is saved and restored."""

  def get_state(self) -> Json:
    """Returns the position, as JSON."""
    ...

  def set_state(self, state: Json) -> None:
    """Resumes at a position that `get_state` returned."""
    ...


class RolloutBatches(Data, Protocol):
  """Endless batches of completions that do not change."""

  def __next__(self) -> HostRollouts:
    """Returns P groups."""
    ...


class Trained(Protocol):
  """Parameters with a state that checkpoints hold: a policy, a reward model, a copied reference."""

  state: TrainState

  @property
  def params(self) -> Params:
    """All parameters: the base under adapters, if there are any, and `trained`."""
    ...

  @property
  def trained(self) -> Params:
    """Only the parameters that are in `state`."""
    ...

  def abstract(self) -> TrainState:
    """Returns the shapes, dtypes and shardings of the state; nothing is allocated."""
    ...

  def start(self) -> None:
    """Sets `state` to the start of a run."""
    ...

  def load_reference(self, pin: Json) -> Json:
    """Loads the parameters that are not saved, and returns what identifies them in a checkpoint.

    Args:
      pin: what it returned when the run began; {} in a fresh run.
    """
    ...

  def get_sizes(self) -> Json:
    """Returns the sizes of the programs made so far, as JSON."""
    ...

  def set_sizes(self, sizes: Json) -> None:
    """Resumes with the sizes that `get_sizes` returned."""
    ...

  def check_finite(self, metrics: Mapping[str, Number], safe: Callable[[], str]) -> None:
    """Ends a run whose last updates were not finite; `safe` says what is saved."""
    ...
