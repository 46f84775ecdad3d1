"""Records a window of steps with JAX's profiler."""

import jax

from grpo_jax.config import settings


class Profiler:
  """Records `steps` steps from `first_step` on into a folder; 0 steps: nothing.

  Evaluations and checkpoints between these steps are recorded, too, but not those after the last.
  A run that is resumed inside the window records the rest of it; the end of a run closes it.
  """

  def __init__(self, cfg: settings.Profile, folder: str):
    """`cfg`: the `profile` section."""
    self.window = range(cfg.first_step, cfg.first_step + cfg.steps)
    self.folder, self.recording = folder, False

  def before(self, step: int) -> None:
    """Starts recording before the first step of the window."""
    if step in self.window and not self.recording:
      jax.profiler.start_trace(self.folder)
      self.recording = True

  def after(self, step: int) -> None:
    """Stops recording after the last step of the window."""
    if step + 1 == self.window.stop:
      self.close()

  def close(self) -> None:
    """Stops recording, if it is on."""
    if self.recording:
      jax.profiler.stop_trace()
      self.recording = False
