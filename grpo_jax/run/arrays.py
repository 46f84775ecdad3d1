"""Reads the checksums of a checkpoint's arrays, a few at a time on one device (experiments.doctor).

A run restores a whole checkpoint onto its own devices and for its own model (checkpoint.py). Here
nothing is known but the folder, and only a part of it has to fit into memory.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from grpo_jax.run import finished, orbax_logging
from grpo_jax.run.checksums import checksums

AT_ONCE = 1 << 30  # bytes


def read(workdir: str, step: int) -> Iterator[tuple[dict[str, str], int]]:
  """Yields the checksums of some arrays, by their names in `About.arrays`, and their bytes.

  A damaged checkpoint raises an exception of any kind.
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
    parts = [leaf if start <= i < end else ocp.PLACEHOLDER for i, leaf in enumerate(wanted)]
    item = jax.tree.unflatten(tree, parts)
    args = ocp.args.PyTreeRestore(
      item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item)
    )
    arrays = ocp.PyTreeCheckpointHandler().restore(path, args=args)
    arrays = jax.tree.map(lambda leaf: None if leaf is ocp.PLACEHOLDER else leaf, arrays)
    yield checksums(arrays), sum(sizes[start:end])
    start = end
