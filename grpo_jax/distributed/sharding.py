"""The mesh, and one table from logical axis names to mesh axes.

The same program runs on one CPU core and on a pod: what changes is the mesh. A dimension that a
mesh axis does not divide is replicated by rule (one key/value head on eight chips); a batch that
does not divide is refused.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from grpo_jax.config import forms
from grpo_jax.errors import SettingError
from grpo_jax.types import Prompts

AXES = forms.MESH_AXES

# Logical axes of one array, which no mesh axis may cut both.
TOGETHER = (
  ("prompt", "sample"),
  *(("embed", name) for name in ("heads", "kv_heads", "mlp", "vocab")),
)

# A logical axis is a name, a (name, unit) pair where shards may only cut between blocks of `unit`
# entries (heads of head_dim), or None.
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
    """XLA's options for its programs: on a CPU they hold as few arrays at once as they can; none
    elsewhere.
    """
    return (
      {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
      if self.platform == "cpu"
      else {}
    )

  def size(self, name: str) -> int:
    """Returns the number of shards along a logical axis."""
    return math.prod(self.mesh.shape[a] for a in dict(self.rules).get(name, ()))

  def shards(self, name: str, length: int) -> int:
    """Returns the number of shards of an axis of that length: `size(name)`, or 1 if that does not
    divide it.
    """
    return 1 if length % self.size(name) else self.size(name)

  def spec(self, names: Sequence[Axis], shape: Sequence[int]) -> PartitionSpec:
    """Returns how an array of `shape` with logical `names` of its axes is cut; what does not divide
    is whole.
    """
    table, cuts = dict(self.rules), []
    for name, dim in zip(names, shape, strict=True):
      name, unit = name if isinstance(name, tuple) else (name, 1)
      axes = table.get(name, ()) if name else ()
      shards = math.prod(self.mesh.shape[a] for a in axes)
      cuts.append(axes if shards > 1 and dim % (unit * shards) == 0 else None)
    return PartitionSpec(*cuts)

  def named(self, names: Sequence[Axis], shape: Sequence[int]) -> NamedSharding:
    """Returns `spec` on this mesh."""
    return NamedSharding(self.mesh, self.spec(names, shape))

  def constrain(self, x: jax.Array, *names: Axis) -> jax.Array:
    """Returns x, inside a jitted function, cut by logical names; x itself on a mesh of one device."""
    if self.mesh.size == 1:
      return x
    return jax.lax.with_sharding_constraint(x, self.named(names, x.shape))

  def inside(self, axes: Sequence[str]) -> "Layout":
    """Returns the layout as the body of a `jax.shard_map` over these mesh axes has it: nothing is
    cut over them.
    """
    left = tuple(
      (name, tuple(axis for axis in cut if axis not in axes)) for name, cut in self.rules
    )
    return dataclasses.replace(self, rules=left)

  def axes_of(self, *names: str) -> tuple[str, ...]:
    """Returns the mesh axes of these logical axes, each once, in the mesh's order."""
    found = {axis for name in names for axis in dict(self.rules).get(name, ())}
    return tuple(axis for axis in self.mesh.axis_names if axis in found)

  @property
  def shard_axes(self) -> tuple[str, ...]:
    """The mesh axes over which the learner's shards work by themselves: those of prompts, samples
    and embed.
    """
    return self.axes_of("prompt", "sample", "embed")

  def replicated(self) -> NamedSharding:
    """Returns the sharding of what is whole on every device."""
    return NamedSharding(self.mesh, PartitionSpec())

  def batch(self, tree: Any) -> Any:
    """Returns the shardings of a batch: prompts over their mesh axes, samples over theirs
    (`batch_axes`).
    """
    return jax.tree.map(lambda x, axes: self.named(axes, x.shape), tree, batch_axes(tree))


def batch_axes(tree: Any) -> Any:
  """Returns the logical names of the axes of each array of a batch, a tuple in the place of each
  array.

  Arrays start with axes of prompts and of samples (`[P, G, ...]`, also `[P, R, ...]`: each shard of
  samples has rows of its own), but for those of `Prompts`, whose second axis holds tokens: what a
  group shares is not cut over samples.
  """
  return jax.tree.map(_batch_axes, tree, is_leaf=_is_prompts)


def _is_prompts(node: Any) -> bool:
  return isinstance(node, Prompts)


def _batch_axes(node: Any) -> Any:
  if _is_prompts(node):
    return jax.tree.map(lambda x: ("prompt",) + (None,) * (x.ndim - 1), node)
  return ("prompt", "sample")[: node.ndim] + (None,) * (node.ndim - 2)


def make_layout(cfg: Any, devices: Sequence[jax.Device] | None = None) -> Layout:
  """Returns the mesh of a `mesh` config section (one -1 takes the devices that are left) over
  `devices`.

  Raises:
    SettingError: the sizes do not multiply to the number of devices, or `replica` is no multiple of
      the slices.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = [int(cfg[a]) for a in AXES]
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
        f"mesh.rules={rules}: {name} and {other} are axes of one array, which {min(both)} can cut "
        "along one only"
      )
  return Layout(mesh, rules)


def make_mesh(sizes: Sequence[int], devices: Sequence[jax.Device]) -> Mesh:
  """Returns a mesh of AXES over all `devices`. Between slices of TPUs, which a slower network
  joins, only replica lies.

  Raises:
    SettingError: `replica` cannot lie so.
  """
  types, slices = (AxisType.Auto,) * len(AXES), slices_of(devices)
  if len(slices) == 1:
    return jax.make_mesh(tuple(sizes), AXES, devices=devices, axis_types=types)
  if sizes[0] % len(slices) or len(set(slices.values())) > 1:
    raise SettingError(
      f"mesh.replica={sizes[0]}: there are {len(slices)} slices of {sorted(set(slices.values()))} "
      "devices, and only "
      f"replica may lie across them; use slices of one size and mesh.replica={len(slices)} or a "
      "multiple of it"
    )
  inside, between = (sizes[0] // len(slices), *sizes[1:]), (len(slices), 1, 1, 1)
  split = devices[0].device_kind in (
    "TPU v5 lite",
    "TPU v5e",
  )  # as `jax.make_mesh` does where there is one slice
  laid_out = mesh_utils.create_hybrid_device_mesh(
    inside, between, devices, allow_split_physical_axes=split
  )
  return Mesh(laid_out, AXES, axis_types=types)


def slices_of(devices: Sequence[jax.Device]) -> dict[int, int]:
  """Returns the number of devices in each slice of TPUs; on other platforms all devices are one
  slice.

  There jax calls each machine a slice, and parameters may well be cut over several.
  """
  tpu = devices[0].platform == "tpu"
  return dict(
    collections.Counter(getattr(device, "slice_index", 0) if tpu else 0 for device in devices)
  )


def check_batch(layout: Layout, prompts: int, group: int) -> None:
  """Refuses a batch that the mesh does not divide.

  Raises:
    SettingError: names both settings and what would work.
  """
  for setting, value, name in (
    ("data.prompts", prompts, "prompt"),
    ("sampler.group", group, "sample"),
  ):
    n = layout.size(name)
    if value % n:
      split = split_that_fits(layout, prompts, group)
      also = f", or mesh.group={split}" if split else ""
      raise SettingError(
        f"{setting}={value} does not divide over {n} shards of the mesh {dict(layout.mesh.shape)}; "
        "use a multiple of "
        f"{n}{also}"
      )


def split_that_fits(layout: Layout, prompts: int, group: int) -> int:
  """Returns the smallest `mesh.group` over which the batch divides, on as many devices as fsdp and
  group have now.

  0 where there is none. The prompts lie on replica and fsdp then, as the rules that ship say.
  """
  shape = layout.mesh.shape
  devices = shape["fsdp"] * shape["group"]
  fits = (
    g
    for g in range(1, devices + 1)
    if devices % g == 0 and prompts % (shape["replica"] * devices // g) == 0 and group % g == 0
  )
  return next(fits, 0)
