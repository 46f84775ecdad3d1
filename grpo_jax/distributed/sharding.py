"""Defines the mesh and the one table from logical axis names to mesh axes.

The same program runs on one CPU core and on a pod; only the mesh changes. A dimension that a mesh
axis does not divide is replicated (one key/value head on eight chips); a batch that does not divide
is refused.
"""

import collections
import dataclasses
import math
import os
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from grpo_jax.aliases import Tree
from grpo_jax.config import forms, settings
from grpo_jax.errors import SettingError
from grpo_jax.types import Prompts

AXES = forms.MESH_AXES
CPU_DEVICES = "xla_force_host_platform_device_count"  # of XLA_FLAGS

# Pairs of logical axes of one array, which may not share a mesh axis.
TOGETHER = (
  ("prompt", "sample"),
  *(("embed", name) for name in ("heads", "kv_heads", "mlp", "vocab")),
)

# A logical axis is a name, None, or a (name, unit) pair, where each shard must hold whole blocks of
# `unit` entries (heads of head_dim).
Axis = str | tuple[str, int] | None


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh and the rules that map logical axes to its axes."""

  mesh: Mesh
  rules: tuple[tuple[str, tuple[str, ...]], ...]

  @property
  def platform(self) -> str:
    """cpu, gpu or tpu."""
    return self.mesh.devices.flat[0].platform

  @property
  def compiler_options(self) -> dict[str, str | bool]:
    """XLA's options: on a CPU, schedules that hold as few arrays at once as possible."""
    if self.platform != "cpu":
      return {}
    return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

  def size(self, name: str) -> int:
    """Returns the number of shards along a logical axis."""
    return math.prod(self.mesh.shape[a] for a in dict(self.rules).get(name, ()))

  def shards(self, name: str, length: int) -> int:
    """Returns the number of shards of an axis: `size(name)` if it divides `length`, else 1."""
    return 1 if length % self.size(name) else self.size(name)

  def spec(self, names: Sequence[Axis], shape: Sequence[int]) -> PartitionSpec:
    """Returns how an array with these logical axes is sharded; None where it does not divide."""
    table = dict(self.rules)
    cuts: list[tuple[str, ...] | None] = []
    for axis, dim in zip(names, shape, strict=True):
      name, unit = axis if isinstance(axis, tuple) else (axis, 1)
      axes = table.get(name, ()) if name else ()
      shards = math.prod(self.mesh.shape[a] for a in axes)
      cuts.append(axes if shards > 1 and dim % (unit * shards) == 0 else None)
    return PartitionSpec(*cuts)

  def named(self, names: Sequence[Axis], shape: Sequence[int]) -> NamedSharding:
    """Returns `spec` on this mesh."""
    return NamedSharding(self.mesh, self.spec(names, shape))

  def constrain(self, x: jax.Array, *names: Axis) -> jax.Array:
    """Returns x sharded by these logical axes, in a jitted function; as it is on one device."""
    if self.mesh.size == 1:
      return x
    return jax.lax.with_sharding_constraint(x, self.named(names, x.shape))

  def inside(self, axes: Sequence[str]) -> "Layout":
    """Returns the layout inside a `jax.shard_map` over `axes`: nothing is sharded by them."""
    rules = tuple(
      (name, tuple(axis for axis in cuts if axis not in axes)) for name, cuts in self.rules
    )
    return dataclasses.replace(self, rules=rules)

  def mesh_axes(self, *names: str) -> tuple[str, ...]:
    """Returns the mesh axes of these logical axes, each once, in the mesh's order."""
    used = {axis for name in names for axis in dict(self.rules).get(name, ())}
    return tuple(axis for axis in self.mesh.axis_names if axis in used)

  @property
  def shard_axes(self) -> tuple[str, ...]:
    """Mesh axes of the learner's shards: those of prompts, samples and embed."""
    return self.mesh_axes("prompt", "sample", "embed")

  def replicated(self) -> NamedSharding:
    """Returns the sharding of an array that is whole on every device."""
    return NamedSharding(self.mesh, PartitionSpec())

  def batch(self, tree: Tree) -> Tree:
    """Returns the shardings of a batch by the axes of its arrays (`batch_axes`)."""
    return jax.tree.map(lambda x, axes: self.named(axes, x.shape), tree, batch_axes(tree))


def batch_axes(tree: Tree) -> Tree:
  """Returns the tuple of logical axes of each array of a batch, in the array's place.

  Arrays start with axes of prompts and samples (`[P, G, ...]`; also `[P, R, ...]`, since each shard
  of samples has rows of its own). `Prompts` are the exception: all shards of samples have the whole
  prompts.
  """
  return jax.tree.map(_batch_axes, tree, is_leaf=_is_prompts)


def _is_prompts(node: object) -> bool:
  return isinstance(node, Prompts)


def _batch_axes(node: Tree) -> Tree:
  if _is_prompts(node):
    return jax.tree.map(lambda x: ("prompt",) + (None,) * (x.ndim - 1), node)
  return ("prompt", "sample")[: node.ndim] + (None,) * (node.ndim - 2)


def split_cpu(cfg: settings.Mesh, batches: Sequence[int]) -> None:
  """Makes `mesh.cpu_devices` devices of a CPU, or fewer, unless XLA_FLAGS says how many.

  No device may have been used before. Nothing changes on a GPU or a TPU.

  Args:
    cfg: if it says how many devices the mesh has, no more are made.
    batches: sizes that the devices have to divide; 0 stands for none.
  """
  size = max(0, math.prod(getattr(cfg, axis) for axis in AXES))  # below 0: one axis is open
  devices = math.gcd(cfg.cpu_devices, size, *batches)
  if devices > 1 and CPU_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    jax.config.update("jax_num_cpu_devices", devices)


def make_layout(cfg: settings.Mesh, devices: Sequence[jax.Device] | None = None) -> Layout:
  """Returns the layout of a `mesh` config section over `devices` (None: all of them).

  One axis may be -1: it takes the devices that the others leave.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = [int(getattr(cfg, a)) for a in AXES]
  if sizes.count(-1) > 1:
    raise SettingError(
      f"mesh: {dict(zip(AXES, sizes))} has more than one -1; at most one axis takes what is left"
    )
  if -1 in sizes:
    rest = -math.prod(sizes)
    if len(devices) % rest:
      raise SettingError(f"mesh: {dict(zip(AXES, sizes))} does not divide {len(devices)} devices")
    sizes[sizes.index(-1)] = len(devices) // rest
  if math.prod(sizes) != len(devices):
    raise SettingError(
      f"mesh: {dict(zip(AXES, sizes))} needs {math.prod(sizes)} devices, there are {len(devices)}"
    )
  mesh = make_mesh(sizes, devices)
  rules = tuple((name, tuple(axes)) for name, axes in cfg.rules)
  for name, other in TOGETHER:
    if both := set(dict(rules).get(name, ())) & set(dict(rules).get(other, ())):
      raise SettingError(
        f"mesh.rules={rules}: {name} and {other} are axes of one array, which {min(both)} can "
        "shard along one of them only"
      )
  return Layout(mesh, rules)


def make_mesh(sizes: Sequence[int], devices: Sequence[jax.Device]) -> Mesh:
  """Returns a mesh of AXES over all devices; only replica crosses the slow network of slices."""
  types, slices = (AxisType.Auto,) * len(AXES), slice_sizes(devices)
  if len(slices) > 1 and (sizes[0] % len(slices) or len(set(slices.values())) > 1):
    raise SettingError(
      f"mesh.replica={sizes[0]}: there are {len(slices)} slices of {sorted(set(slices.values()))} "
      "devices, and only replica may lie across them; use slices of one size and "
      f"mesh.replica={len(slices)} or a multiple of it"
    )
  inside, between = (sizes[0] // len(slices), *sizes[1:]), (len(slices), 1, 1, 1)
  # `jax.make_mesh` splits a side of the torus over two axes of the mesh on v5e only
  try:
    if len(slices) == 1:
      placed = mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
    else:
      placed = mesh_utils.create_hybrid_device_mesh(
        inside, between, devices, allow_split_physical_axes=True
      )
  except (AssertionError, NotImplementedError, TypeError, ValueError) as error:
    raise SettingError(
      f"mesh: jax cannot lay {dict(zip(AXES, sizes))} over {len(devices)} devices of kind "
      f"{devices[0].device_kind} ({' '.join(str(error).split())[:200]}); use whole slices, with "
      f"mesh.replica={len(slices)}, mesh.fsdp=-1 and 1 for the other axes if no other mesh fits"
    ) from error
  return Mesh(placed, AXES, axis_types=types)


def slice_sizes(devices: Sequence[jax.Device]) -> dict[int, int]:
  """Returns the number of devices in each slice of TPUs, by slice.

  On other platforms all devices are one slice: jax calls each machine a slice there, and parameters
  may well be sharded over machines.
  """
  tpu = devices[0].platform == "tpu"
  return dict(
    collections.Counter(getattr(device, "slice_index", 0) if tpu else 0 for device in devices)
  )


def check_batch(layout: Layout, prompts: int, group: int) -> None:
  """Refuses a batch that the mesh does not divide."""
  settings = (("data.prompts", prompts, "prompt"), ("sampler.group", group, "sample"))
  for setting, value, name in settings:
    n = layout.size(name)
    if value % n:
      split = split_that_fits(layout, prompts, group)
      also = f", or mesh.group={split}" if split else ""
      raise SettingError(
        f"{setting}={value} does not divide over {n} shards of the mesh {dict(layout.mesh.shape)}; "
        f"use a multiple of {n}{also}"
      )


def split_that_fits(layout: Layout, prompts: int, group: int) -> int:
  """Returns the smallest `mesh.group` that divides the batch; 0 if there is none.

  It is for as many devices as fsdp and group have now, with prompts on replica and fsdp, as in the
  default rules.
  """
  shape = layout.mesh.shape
  devices = shape["fsdp"] * shape["group"]
  fits = (
    g
    for g in range(1, devices + 1)
    if devices % g == 0 and prompts % (shape["replica"] * devices // g) == 0 and group % g == 0
  )
  return next(fits, 0)
