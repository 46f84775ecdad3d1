"""Writes numbers for TensorBoard: `tensorboard --logdir DIR/tensorboard` shows them."""

import os
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX import event_file_writer, summary
from tensorboardX.proto.event_pb2 import Event, SessionLog

from grpo_jax.aliases import Json


class Writer:
  """Writes to DIR/tensorboard.

  tensorboardX's SummaryWriter writes in a thread. An error of the disk ends that thread, and the
  writer then waits for it for ever. Here the error is that of the call.
  """

  def __init__(self, folder: str, config: Json, first_step: int):
    """Opens a file of events; what an earlier process wrote after `first_step` is hidden."""
    del config
    place = f"{folder}/tensorboard"
    os.makedirs(place, exist_ok=True)
    self.events = event_file_writer.EventsWriter(f"{place}/events")
    self._add(first_step + 1, session_log=SessionLog(status=SessionLog.START))

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Writes the numbers of a step."""
    for name, value in metrics.items():
      self._add(step, summary=summary.scalar(name, value))
    self.events.flush()

  def close(self) -> None:
    """Closes the file."""
    self.events.close()

  def _add(self, step: int, **what: Any) -> None:
    self.events.write_event(Event(wall_time=time.time(), step=step, **what))
