"""Which folders of DIR/checkpoints are complete checkpoints: no more is read than names, and in a
bucket the mark.

jax is not imported for a folder of a disk: a command that names a step which is not there is
answered at once.
"""

from grpo_jax.io import storage

_TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a checkpoint that is being written


def directory(workdir: str) -> storage.Path:
  """DIR/checkpoints of a run."""
  return storage.absolute(workdir) / "checkpoints"


def folders(directory: storage.Path) -> list[storage.Path]:
  """The folders of checkpoints that have got their final name."""
  return [path for path in directory.iterdir() if path.name.isdigit()] if directory.is_dir() else []


def is_complete(path: storage.Path) -> bool:
  """Returns whether a folder with a final name holds the whole checkpoint: on a disk it has got the
  name then.
  """
  if not storage.in_bucket(path):
    return True
  import orbax.checkpoint as ocp  # imports jax

  return ocp.utils.is_checkpoint_finalized(path)


def incomplete(directory: storage.Path) -> list[storage.Path]:
  """What an interrupted save, or an interrupted deletion in a bucket, left."""
  unnamed = (
    [path for path in directory.iterdir() if _TEMPORARY in path.name] if directory.is_dir() else []
  )
  return unnamed + [path for path in folders(directory) if not is_complete(path)]


def steps(directory: storage.Path) -> list[int]:
  """The steps of the complete checkpoints, in order."""
  return sorted(int(path.name) for path in folders(directory) if is_complete(path))


def latest(directory: storage.Path) -> int | None:
  """The step of the last complete checkpoint; None where there is none."""
  return max(steps(directory), default=None)
