"""Writes numbers for TensorBoard: `tensorboard --logdir DIR/tensorboard` shows them."""

from collections.abc import Mapping

import tensorboardX

from grpo_jax.aliases import Json


class Writer:
  """Writes to DIR/tensorboard."""

  def __init__(self, folder: str, config: Json, first_step: int):
    """Opens a file of events; what an earlier process wrote after `first_step` is hidden."""
    del config
    self.events = tensorboardX.SummaryWriter(f"{folder}/tensorboard", purge_step=first_step + 1)

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Writes the numbers of a step."""
    for name, value in metrics.items():
      self.events.add_scalar(name, value, step)
    self.events.flush()

  def close(self) -> None:
    """Closes the file."""
    self.events.close()
