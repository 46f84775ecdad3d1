"""Refuses a run whose arrays cannot fit into memory, before weights or data are read.

Only what a run surely holds at one time is counted, a fraction of what it needs. A size that passes
may still be too large; one that is refused could never work. Without this, sizes with nine zeros
end in minutes of silence.
"""

import math
import os
from typing import NamedTuple

import jax

from grpo_jax.aliases import Tree
from grpo_jax.errors import SettingError
from grpo_jax.setup.experiment import Experiment

SAMPLED = 12  # bytes of a sampled token: its id and two log-probs, before and after truncation
KEPT = 17  # bytes of one in samples.npz: also its reward, and whether it has one


class Array(NamedTuple):
  """Arrays that a run holds, whose size is a product of settings and bytes."""

  what: str
  sizes: dict[str, int]  # setting -> its value
  bytes: int  # of an entry
  everywhere: bool = False  # whether each host holds all of it


def check_sizes(experiment: Experiment) -> None:
  """Refuses sizes whose arrays are larger than the memory of all hosts and devices."""
  hosts = host_bytes()
  everywhere = hosts * jax.process_count() + device_bytes()
  for array in arrays(experiment):
    need = math.prod(array.sizes.values()) * array.bytes
    there = hosts if array.everywhere else everywhere
    if need > there:
      product = " x ".join(f"{name}={value}" for name, value in array.sizes.items())
      of = "this host has" if array.everywhere else "all hosts and devices have"
      largest = max(array.sizes, key=array.sizes.__getitem__)
      raise SettingError(
        f"{product}: {array.what} take {shown(need)}, {array.bytes} bytes each, and {of} "
        f"{shown(there)} of memory; use a smaller {largest}"
      )


def check_state(abstract_state: Tree) -> None:
  """Refuses parameters and optimizer moments larger than the memory of all hosts and devices.

  Args:
    abstract_state: pytree of arrays or `ShapeDtypeStruct`s, of everything that is trained.
  """
  need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_state))
  there = host_bytes() * jax.process_count() + device_bytes()
  if need > there:
    raise SettingError(
      f"init_from or model.variant: parameters and the optimizer's moments take {shown(need)}, and "
      f"all hosts and devices have {shown(there)} of memory; use a smaller model, a smaller "
      "lora.rank, or more hosts"
    )


def arrays(experiment: Experiment) -> list[Array]:
  """Returns what a run surely holds."""
  source = experiment.source
  prompts = {"data.prompts": experiment.data.prompts}
  length = {"sampler.max_length": experiment.sampler.max_length}
  group = (
    {"sampler.group": experiment.completions} if source in ("live", "samples", "steps") else {}
  )
  width = {"data.max_prompt_length": experiment.data.max_prompt_length}
  batch = {"eval.batch": experiment.eval.batch}
  held = [
    Array("tokens and log-probs of a batch", prompts | group | length, SAMPLED),
    Array("prompts of a batch", prompts | width, 4, everywhere=True),
  ]
  if experiment.kind in ("online", "iterative", "offline"):
    samples = {"eval.samples": experiment.eval.samples} if experiment.eval.samples else {}
    held.append(Array("prompts of an evaluation", batch | width, 4, everywhere=True))
    held.append(Array("tokens and log-probs of an evaluation", batch | samples | length, SAMPLED))
  if experiment.kind == "iterative":
    held.append(
      Array(
        "pairs of a batch", {"iterative.pairs": experiment.iterative.pairs} | length, 2 * SAMPLED
      )
    )
  if source in ("samples", "pairs") and not experiment.offline.pairs:
    per_prompt = group | length
    for name in ("prompts", "held_out"):
      drawn = {f"offline.{name}": getattr(experiment.offline, name)}
      held.append(Array("the samples that are kept", drawn | per_prompt, KEPT, everywhere=True))
  return held


def host_bytes() -> int:
  """Returns the memory of this host."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_bytes() -> int:
  """Returns the memory of all accelerators, if every host has those of this one."""
  stats = [device.memory_stats() for device in jax.local_devices() if device.platform != "cpu"]
  # a TiB if the device does not say
  return sum((each or {}).get("bytes_limit", 2**40) for each in stats) * jax.process_count()


def shown(count: int) -> str:
  """Returns a number of bytes as a message shows it."""
  power, unit = next(((p, u) for p, u in ((4, "TB"), (3, "GB")) if count >= 1000**p), (2, "MB"))
  return f"{count / 1000**power:,.1f} {unit}"
