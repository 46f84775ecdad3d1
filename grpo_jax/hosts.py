"""What process 0 of a run knows, on all of its processes: where each could come to another answer, one decides."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

BYTES = 500  # of a text


def text_of_process_0(text: str) -> str:
  """Returns what process 0 passes, on every process; at most its first BYTES bytes. Every process calls it."""
  if jax.process_count() == 1:
    return text
  sent = np.frombuffer(text.encode(errors="replace")[:BYTES].ljust(BYTES), np.uint8)
  return bytes(multihost_utils.broadcast_one_to_all(sent)).decode(errors="replace").strip()


def arrays_of_process_0(tree: Any) -> Any:
  """Returns the numpy arrays that process 0 passes, on every process; all pass the same shapes and dtypes."""
  if jax.process_count() == 1:
    return tree
  as_bytes = jax.tree.map(lambda x: np.ascontiguousarray(x).reshape(-1).view(np.uint8), tree)
  sent = multihost_utils.broadcast_one_to_all(as_bytes)
  return jax.tree.map(lambda x, y: np.asarray(y).view(x.dtype).reshape(x.shape), tree, sent)
