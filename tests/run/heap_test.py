"""Memory that is given back."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FREED = """
import pathlib
import numpy as np
from grpo_jax.run import heap

def resident():
  line = next(x for x in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
  return int(line.split()[1])

start = resident()
large = np.ones(25_000_000)  # 200 MB
small = [np.ones(125_000) for _ in range(200)]  # 1 MB each
above = bytes(1000)
held = resident() - start
del large
after_large = resident() - start
del small
after_small = resident() - start
heap.release()
print(held, after_large, after_small, resident() - start)
"""


@pytest.mark.skipif(
  not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)
def test_what_was_freed_goes_back_to_the_system():
  """Gives large arrays back at once, small ones by `release`, under launch/local.sh's settings."""
  script = (ROOT / "launch/local.sh").read_text()
  (tunables,) = re.findall(r"\$\{GLIBC_TUNABLES-(\S+)\}", script)
  done = subprocess.run(
    [sys.executable, "-c", FREED],
    env=os.environ | {"GLIBC_TUNABLES": tunables, "PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=True,
  )
  held, after_large, after_small, left = map(int, done.stdout.split())
  assert held > 380_000
  assert 180_000 < after_large < 220_000
  assert after_small > 180_000 and left < 40_000
