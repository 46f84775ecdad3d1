"""Memory that is given back."""

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

HEAP = "glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=8589934592"
FREED = """
import pathlib
import numpy as np
from grpo_jax.run import heap

def resident():
  line = next(x for x in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
  return int(line.split()[1])

start = resident()
x = np.ones(25_000_000)  # 200 MB
above = bytes(1000)
del x
kept = resident() - start
heap.release()
print(kept, resident() - start)
"""


@pytest.mark.skipif(
  not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)
def test_what_was_freed_goes_back_to_the_system():
  """Under the settings of launch/local.sh it stays in the process until then."""
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, "-c", FREED],
    env=os.environ | {"GLIBC_TUNABLES": HEAP, "PYTHONPATH": str(root)},
    capture_output=True,
    text=True,
    check=True,
  )
  kept, left = map(int, done.stdout.split())
  assert kept > 180_000 and left < 40_000
