"""Eight simulated CPU devices for every test, set before jax is imported; what takes no mesh runs
on the first.

A program that a test starts gets one device, as on a laptop, unless it asks for more: use the
fixture `program`.
"""

import os
import pathlib
import subprocess
import sys

import pytest

DEVICES = "--xla_force_host_platform_device_count"
# Eight devices on two cores may wait for one another for long; XLA would give up after 40 seconds.
PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
# Without LLVM's optimisations programs compile sooner: lora_test.py takes 83 s of a core in place
# of 148. Without the newer code for fusions two thirds of the time are left.
UNOPTIMISED = (
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
  "--xla_cpu_use_fusion_emitters=false"
)
ROOT = pathlib.Path(__file__).parents[1]
MOST_RESIDENT = 2_500_000_000  # bytes

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What one test has compiled, in whatever process, no other one compiles again: nor do the mutants
# of its own code.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("USE_TF", "0")
os.environ["HF_HUB_OFFLINE"] = "1"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8 {PATIENCE} {UNOPTIMISED}".strip()
  )


def environment(devices: int = 1, **more: str) -> dict[str, str]:
  """This process's environment for another one, with so many simulated devices."""
  return {
    **os.environ,
    "XLA_FLAGS": f"{DEVICES}={devices} {PATIENCE} {UNOPTIMISED}",
    "PYTHONUNBUFFERED": "1",
    **more,
  }


def resident() -> int:
  """Returns the bytes of memory that this process holds; 0 where the system does not say."""
  try:
    pages = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
  except OSError:
    return 0
  return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module", autouse=True)
def memory():
  """Forgets compiled programs after a file of tests, where this process has come to hold much: a
  test of real weights needs 5 GB, and there is a process for each core.
  """
  yield
  if resident() > MOST_RESIDENT:
    import jax

    from grpo_jax.run import heap

    jax.clear_caches()
    heap.release()


@pytest.fixture
def float64():
  """Computes in float64 where a test compares formulas to 1e-6."""
  import jax

  with jax.enable_x64(True):
    yield


@pytest.fixture(scope="session")
def served():
  """Serves a bucket on loopback (tests/helpers/bucket.py) to this process, and to those that it
  starts.
  """
  import bucket

  with bucket.serving() as environment, pytest.MonkeyPatch.context() as m:
    for name, value in environment.items():
      m.setenv(name, value)  # tensorstore reads it once: there is one server
    yield


@pytest.fixture
def program():
  """`program(module, *args)` runs `python -m module args`, in the repository unless told, to the
  end of the process.
  """

  def run(
    module: str,
    *args: str,
    devices: int = 1,
    timeout: float = 120,
    cwd: pathlib.Path = ROOT,
    **env: str,
  ) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, *map(str, args)]
    return subprocess.run(
      command,
      cwd=cwd,
      env=environment(devices, **env),
      text=True,
      capture_output=True,
      timeout=timeout,
      stdin=subprocess.DEVNULL,
    )

  return run


@pytest.fixture
def config():
  """Returns the config of a small model on a few word problems; a file may have one of its own."""
  import small_models  # noqa: F401  adds the variants named test_*

  from grpo_jax.setup import defaults  # imports jax, which has to find the settings above

  c = defaults.get_config()
  c.tokenizer, c.model.variant = "words", "test_qwen3"
  c.data.arithmetic.size = 32
  c.eval.problems = 4
  return c
