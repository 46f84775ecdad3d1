"""Measures how fast this machine multiplies and copies, which bounds the speed of a step."""

import functools
import resource
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from experiments.measure.processes import RSS_BYTES
from grpo_jax.ops.precision import precision


def median_seconds(f: Any, *args: Any, times: int = 5) -> float:
  """Returns the median seconds of some calls, after one that may compile."""
  jax.block_until_ready(f(*args))
  seconds = []
  for _ in range(times):
    start = time.perf_counter()
    jax.block_until_ready(f(*args))
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)


def matmul_rate(dtype: str = "float32") -> float:
  """Returns the FLOP/s of a square product, as exact as the model's of that dtype."""
  n = 2048 if jax.default_backend() == "cpu" else 8192
  x = jax.random.normal(jax.random.key(0), (n, n), dtype)  # of ones it is faster than of data
  product = functools.partial(jnp.matmul, precision=precision(dtype))
  return 2 * n**3 / median_seconds(jax.jit(product), x, x)


def copy_rate(times: int = 8) -> float:
  """Returns the bytes/s of reading and writing an array in place, without page faults of a CPU."""
  megabytes = 128 if jax.default_backend() == "cpu" else 1024
  x = jnp.ones(megabytes * 2**18, jnp.float32)

  @jax.jit
  def add(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, times, lambda _, x: x + 1, x)

  return times * 2 * x.nbytes / median_seconds(add, x)


def device_peak() -> float | None:
  """Returns the peak memory in GB, None on devices that do not count it, such as CPUs."""
  return ((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use") or 0) / 1e9 or None


def process_peak() -> float:
  """Returns the peak of this process's resident memory in GB (10^9 bytes)."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_BYTES / 1e9
