"""Writes numbers for Trackio: `trackio show --project grpo_jax` shows them.

Trackio's own variables say where they are kept, such as TRACKIO_DIR and TRACKIO_SPACE_ID, and
TRACKIO_PROJECT names another project. A run that is resumed in the same folder goes on with its run
there; the steps that it makes again are there twice, with the same numbers.
"""

import os
import pathlib
from collections.abc import Mapping

import trackio

from grpo_jax.aliases import Json
from grpo_jax.io import tracker_run


class Writer:
  """Writes to a run of Trackio, which is called after the folder and an id."""

  def __init__(self, folder: str, config: Json, first_step: int):
    """Starts a run, or goes on with that of the folder after the first step."""
    path = pathlib.Path(folder).absolute()
    own = tracker_run.kept_id(folder, "trackio", first_step)
    self.run = trackio.init(
      project=os.environ.get("TRACKIO_PROJECT", "grpo_jax"),
      name=f"{path.name}-{own}",
      resume="allow",
      config=config,
      embed=False,
    )

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Writes the numbers of a step."""
    self.run.log(dict(metrics), step=step)

  def close(self) -> None:
    """Waits until everything is written."""
    self.run.finish()
