"""The window of steps that JAX's profiler records."""

import jax
from ml_collections import ConfigDict


class Profiler:
  """Records steps `first_step` to `first_step + steps - 1` into a folder; 0 steps: nothing.

  A run that goes on inside the window records what is left of it, and the end of the run closes it.
  """

  def __init__(self, cfg: ConfigDict, folder: str):
    """`cfg`: the `profile` section."""
    self.window = range(cfg.first_step, cfg.first_step + cfg.steps)
    self.folder, self.recording = folder, False

  def before(self, step: int) -> None:
    """Starts or stops recording, as the window says of `step`, which is about to begin."""
    if step in self.window and not self.recording:
      jax.profiler.start_trace(self.folder)
      self.recording = True
    if step not in self.window:
      self.close()

  def close(self) -> None:
    """Stops recording, where it is on."""
    if self.recording:
      jax.profiler.stop_trace()
      self.recording = False
