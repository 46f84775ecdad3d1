"""Keeps which run of a tracker belongs to a folder, so that a resumed run goes on with it."""

import pathlib
import secrets


def kept_id(folder: str, tracker: str, first_step: int) -> str:
  """Returns the id of a folder's run, kept in DIR/TRACKER/run_id; step 0 begins a new one."""
  kept = pathlib.Path(folder) / tracker / "run_id"
  if first_step == 0 or not kept.exists():
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(secrets.token_hex(8))
  return kept.read_text()
