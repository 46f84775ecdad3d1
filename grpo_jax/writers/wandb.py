"""Sends numbers to Weights & Biases, whose own variables say where: WANDB_PROJECT, WANDB_MODE.

A run that is resumed in the same folder goes on with the same run there. With WANDB_MODE=offline
everything stays in DIR/wandb, and `wandb sync DIR/wandb/offline-run-*` sends it later.
"""

import os
import pathlib
from collections.abc import Mapping

import wandb

from grpo_jax.aliases import Json
from grpo_jax.io import tracker_run


class Writer:
  """Writes to a run of W&B."""

  def __init__(self, folder: str, config: Json, first_step: int):
    """Starts a run, or goes on with that of the folder after the first step."""
    path = pathlib.Path(folder).absolute()
    self.run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", "grpo_jax"),
      name=path.name,
      id=tracker_run.kept_id(folder, "wandb", first_step),
      resume="allow",
      config=config,
      dir=folder,
    )

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Sends the numbers of a step; W&B drops those of steps that it has had."""
    self.run.log(dict(metrics), step=step)

  def close(self) -> None:
    """Waits until everything is sent, and ends W&B's process unless another run needs it."""
    self.run.finish()
    if wandb.run is None:
      wandb.teardown()
