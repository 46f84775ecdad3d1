"""Finds the complete checkpoints in DIR/checkpoints; only names are read (in a bucket, the marks).

jax is not imported for a folder on a disk, so that a command that names a missing step is answered
at once.
"""

from grpo_jax.io import storage

_TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a checkpoint that is being written


def directory(workdir: str) -> storage.Path:
  """Returns DIR/checkpoints of a run."""
  return storage.absolute(workdir) / "checkpoints"


def folders(directory: storage.Path) -> list[storage.Path]:
  """Returns the folders of checkpoints that have their final name."""
  return [path for path in directory.iterdir() if path.name.isdigit()] if directory.is_dir() else []


def is_complete(path: storage.Path) -> bool:
  """Returns whether a folder with a final name is a whole checkpoint; on a disk it always is."""
  if not storage.in_bucket(path):
    return True
  import orbax.checkpoint as ocp  # imports jax

  return ocp.utils.is_checkpoint_finalized(path)


def incomplete(directory: storage.Path) -> list[storage.Path]:
  """Returns what an interrupted save, or an interrupted deletion in a bucket, left."""
  unnamed = (
    [path for path in directory.iterdir() if _TEMPORARY in path.name] if directory.is_dir() else []
  )
  return unnamed + [path for path in folders(directory) if not is_complete(path)]


def steps(directory: storage.Path) -> list[int]:
  """Returns the steps of the complete checkpoints, in order."""
  return sorted(int(path.name) for path in folders(directory) if is_complete(path))


def latest(directory: storage.Path) -> int | None:
  """Returns the step of the last complete checkpoint; None if there is none."""
  return max(steps(directory), default=None)
