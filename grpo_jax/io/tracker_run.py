"""Keeps which run of a tracker belongs to a folder, so that a resumed run goes on with it."""

import pathlib
import secrets

TRACKERS = ("wandb", "trackio")


def place(tracker: str) -> str:
  """Returns the path in a run's folder of the file with the id."""
  return f"{tracker}/run_id"


def kept_id(folder: str, tracker: str, first_step: int) -> str:
  """Returns the id of a folder's run, kept in DIR/TRACKER/run_id; step 0 begins a new one."""
  kept = pathlib.Path(folder) / place(tracker)
  if first_step == 0 or not kept.exists():
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(secrets.token_hex(8))
  return kept.read_text()
