"""Checksums of the arrays of a checkpoint, read a few at a time on one device: what
experiments.doctor compares.

A run restores all of a checkpoint at once (checkpoint.py), onto its own devices and for its own
model. Here nothing is known but the folder, and no more than a part of it has to fit the memory.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from grpo_jax.run import finished, orbax_logging
from grpo_jax.run.checksums import checksums

AT_ONCE = 1 << 30  # bytes


def read(workdir: str, step: int) -> Iterator[tuple[dict[str, str], int]]:
  """Yields the checksums of some arrays of a checkpoint, by the names that `checkpoint.about` has,
  and their bytes.

  Raises:
    Exception: of any kind where the checkpoint is damaged.
  """
  orbax_logging.orbax()
  path = finished.directory(workdir) / str(step) / "state"
  leaves, tree = jax.tree.flatten(ocp.PyTreeCheckpointHandler().metadata(path).tree)
  device = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
  wanted = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device) for leaf in leaves]
  sizes = [leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in wanted]
  start = 0
  while start < len(wanted):
    end = start + 1
    while end < len(wanted) and sum(sizes[start : end + 1]) <= AT_ONCE:
      end += 1
    item = tree.unflatten(
      [leaf if start <= i < end else ocp.PLACEHOLDER for i, leaf in enumerate(wanted)]
    )
    args = ocp.args.PyTreeRestore(
      item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item)
    )
    found = ocp.PyTreeCheckpointHandler().restore(path, args=args)
    found = jax.tree.map(lambda leaf: None if leaf is ocp.PLACEHOLDER else leaf, found)
    yield checksums(found), sum(sizes[start:end])
    start = end
