"""Gives memory that is free back to the system."""

import ctypes
import gc


def release() -> None:
  """Returns all free pages of the process's heap to the system, where its C library is glibc.

  With the settings of launch/local.sh freed memory stays in the process, for arrays of the same
  sizes in the next step. Those of a checkpoint's copies, and of a run that ends before another one,
  are not asked for again: without this the recipe for Gemma 3 270M keeps 3 GB more after each of
  its checkpoints, and 7 GB of its SFT while it runs GRPO.
  """
  gc.collect()
  trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
  if trim is not None:
    trim(0)
