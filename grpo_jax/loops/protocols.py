"""The parts of a run that `Run` saves and restores: data with a position, and what is trained."""

from collections.abc import Callable
from typing import Any, Protocol

from grpo_jax.learning.state import TrainState
from grpo_jax.setup import depends
from grpo_jax.types import HostRollouts


class Data(depends.Contents, Protocol):
  """Data with a position that is saved and restored."""

  def get_state(self) -> dict[str, Any]:
    """Returns the position, as JSON."""
    ...

  def set_state(self, state: dict[str, Any]) -> None:
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
  def params(self) -> Any:
    """All parameters: the base under adapters, if there are any, and `trained`."""
    ...

  @property
  def trained(self) -> Any:
    """The part of the parameters that is in `state`."""
    ...

  def abstract(self) -> TrainState:
    """Returns the shapes, dtypes and shardings of the state; nothing is allocated."""
    ...

  def start(self) -> None:
    """Sets `state` to the start of a run."""
    ...

  def load_reference(self, pin: dict[str, Any]) -> dict[str, Any]:
    """Loads the parameters that are not saved, and returns what identifies them in a checkpoint.

    Args:
      pin: what it returned when the run began; {} in a fresh run.
    """
    ...

  def get_sizes(self) -> dict[str, Any]:
    """Returns the sizes of the programs made so far, as JSON."""
    ...

  def set_sizes(self, sizes: dict[str, Any]) -> None:
    """Resumes with the sizes that `get_sizes` returned."""
    ...

  def check_finite(self, metrics: dict[str, Any], safe: Callable[[], str]) -> None:
    """Ends a run whose last updates were not finite; `safe` says what is saved."""
    ...
