"""The mesh and the table of logical axes: what is sharded, what is replicated by rule, what is
refused.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
import tiny
from jax.sharding import AxisType, PartitionSpec

from grpo_jax.distributed import sharding
from grpo_jax.errors import SettingError
from grpo_jax.types import Prompts


def make(devices=8, rules=None, **sizes):
  cfg = tiny.section("mesh", **({"replica": 1, "fsdp": 1, "group": 1, "tensor": 1} | sizes))
  if rules is not None:
    cfg.rules = rules
  return sharding.make_layout(cfg, jax.devices()[:devices])


def test_the_default_mesh_takes_all_devices():
  layout = sharding.make_layout(tiny.section("mesh"))
  assert dict(layout.mesh.shape) == {
    "replica": 1,
    "fsdp": len(jax.devices()),
    "group": 1,
    "tensor": 1,
  }
  assert set(layout.mesh.axis_types) == {AxisType.Auto}


def test_minus_one_takes_the_devices_that_are_left():
  layout = make(group=2, tensor=2, fsdp=-1)
  assert dict(layout.mesh.shape) == {"replica": 1, "fsdp": 2, "group": 2, "tensor": 2}
  assert layout.size("prompt") == 2 and layout.size("sample") == 2 and layout.size("embed") == 4
  assert layout.size("no such axis") == 1


@pytest.mark.parametrize(
  "sizes, says",
  [
    ({"fsdp": 3}, "needs 3 devices, there are 8"),
    ({"fsdp": 16}, "needs 16 devices, there are 8"),
    ({"fsdp": -1, "group": 3}, "does not divide 8 devices"),
    ({"fsdp": -1, "group": -1}, "more than one -1"),
  ],
)
def test_a_mesh_that_the_devices_do_not_make_is_refused(sizes, says):
  with pytest.raises(SettingError, match=says) as error:
    make(**sizes)
  assert "\n" not in str(error.value)


def test_rules_that_cut_two_axes_of_one_array_by_one_mesh_axis_are_refused():
  with pytest.raises(
    SettingError, match="mesh.rules=.*embed and mlp are axes of one array, which tensor can shard"
  ):
    make(rules=(("embed", ("fsdp", "tensor")), ("mlp", ("tensor",))), fsdp=8)


def test_spec():
  layout = make(replica=2, fsdp=2, tensor=2)
  assert layout.spec(("prompt", "sample", None), (8, 4, 6)) == PartitionSpec(
    ("replica", "fsdp"), None, None
  )
  assert layout.spec(("vocab", "embed"), (96, 32)) == PartitionSpec(("tensor",), ("fsdp", "group"))
  # What does not divide is replicated.
  assert layout.spec(("vocab", "embed"), (97, 33)) == PartitionSpec(None, None)
  assert layout.spec(("prompt",), (6,)) == PartitionSpec(None)


def test_heads_are_cut_only_between_heads():
  """Four devices and kv heads of 16 entries: two of them do not divide over four, though 32 entries
  would.
  """
  layout = make(fsdp=2, tensor=4)
  assert layout.spec((("kv_heads", 16),), (32,)) == PartitionSpec(None)
  assert layout.spec((("kv_heads", 16),), (64,)) == PartitionSpec(("tensor",))
  shardings = tiny.decoder(mesh=(1, 2, 1, 4)).shardings()["layers"]["attention"]
  assert shardings["q"]["weight"].spec == PartitionSpec(None, ("tensor",), ("fsdp", "group"))
  assert shardings["k"]["weight"].spec == PartitionSpec(None, None, ("fsdp", "group"))
  assert shardings["o"]["weight"].spec == PartitionSpec(None, ("fsdp", "group"), ("tensor",))


def test_a_batch_that_the_mesh_does_not_divide_is_refused():
  layout = make(replica=2, fsdp=2, group=2)
  sharding.check_batch(layout, 8, 4)
  with pytest.raises(SettingError, match=r"data.prompts=6 .* 4 shards .* multiple of 4"):
    sharding.check_batch(layout, 6, 4)
  with pytest.raises(SettingError, match=r"sampler.group=3 .* multiple of 2, or mesh.group=1"):
    sharding.check_batch(layout, 8, 3)
  with pytest.raises(SettingError, match=r"data.prompts=2 .* multiple of 4, or mesh.group=4"):
    sharding.check_batch(layout, 2, 4)
  # 3 prompts over 8 devices: no split does
  with pytest.raises(SettingError, match=r"use a multiple of 4$"):
    sharding.check_batch(layout, 3, 4)


def test_constrain_places_an_array_and_is_nothing_on_one_device():
  x = jnp.zeros((8, 4, 6))
  layout = make(fsdp=4, group=2)
  placed = jax.jit(lambda x: layout.constrain(x, "prompt", "sample", None))(x)
  assert placed.addressable_shards[0].data.shape == (2, 2, 6)
  assert tiny.layout().constrain(x, "prompt", "sample", None) is x


def test_parameters_are_placed_by_their_axes():
  decoder = tiny.decoder(mesh=(1, 4, 1, 2))
  shapes, shardings = decoder.shapes(), decoder.shardings()
  assert jax.tree.structure(shardings) == jax.tree.structure(shapes)
  for name in ("embed", "unembed"):
    assert shardings[name]["weight"].shard_shape(shapes[name]["weight"].shape) == (48, 8)


def test_axes_of_a_batch():
  """What has samples is cut over them; prompts, wherever they are in a tree, are not."""
  layout = make(fsdp=2, group=2, tensor=2)
  prompts = Prompts(jnp.zeros((8, 6)), jnp.zeros(8))
  tree = {
    "prompts": prompts,
    "weights": jnp.zeros((8, 4, 6)),
    "lengths": jnp.zeros((8, 4)),
    "flat": jnp.zeros(8),
  }
  cuts = jax.tree.map(lambda s: s.spec, layout.batch((tree, None)))[0]
  over_prompts, over_samples = ("replica", "fsdp"), ("group",)
  assert cuts["prompts"] == Prompts(PartitionSpec(over_prompts, None), PartitionSpec(over_prompts))
  assert cuts["weights"] == PartitionSpec(over_prompts, over_samples, None)
  assert cuts["lengths"] == PartitionSpec(over_prompts, over_samples)
  assert cuts["flat"] == PartitionSpec(over_prompts)


def test_an_axis_that_does_not_divide_is_one_shard():
  layout = make(fsdp=4, group=2)
  assert (
    layout.shards("prompt", 8) == 4
    and layout.shards("prompt", 6) == 1
    and layout.shards("sample", 6) == 2
  )


@dataclasses.dataclass(frozen=True)
class Chip:
  """Stands for a TPU chip; 2 x 2 of v4 are a slice unless a test says otherwise."""

  id: int
  slice_index: int
  platform: str = "tpu"
  device_kind: str = "TPU v4"
  core_on_chip: int = 0
  client: None = None
  sides: tuple[int, int, int] = (2, 2, 1)  # of its slice

  @property
  def coords(self) -> tuple[int, int, int]:
    x, y, z = self.sides
    return self.id % x, self.id // x % y, self.id // (x * y) % z

  @property
  def process_index(self) -> int:
    return self.id // 4


@pytest.mark.parametrize("replica, fsdp", [(2, 4), (4, 2), (8, 1)])
def test_only_replicas_lie_across_slices(replica, fsdp):
  chips = [Chip(id, id // 4) for id in (4, 1, 6, 3, 0, 5, 2, 7)]
  mesh = sharding.make_mesh((replica, fsdp, 1, 1), chips)
  assert mesh.axis_names == sharding.AXES and mesh.devices.shape == (replica, fsdp, 1, 1)
  assert {chip.id for chip in mesh.devices.flat} == set(range(8))
  for row, of_replica in enumerate(mesh.devices):
    assert {chip.slice_index for chip in of_replica.flat} == {row // (replica // 2)}


def chips_of(kind: str, *sides: int, slices: int = 1) -> list[Chip]:
  """Returns the chips of slices with these sides."""
  of_slice = math.prod(sides)
  return [
    Chip(id, id // of_slice, device_kind=kind, sides=sides) for id in range(slices * of_slice)
  ]


@pytest.mark.parametrize(
  "kind, sides, sizes",
  [
    ("TPU v6 lite", (16, 16, 1), (1, 64, 1, 4)),
    ("TPU v5p", (4, 4, 4), (1, 32, 1, 2)),
    ("TPU v5p", (4, 4, 4), (1, 32, 2, 1)),
    ("TPU v4", (4, 4, 4), (2, 4, 2, 4)),
  ],
)
@pytest.mark.parametrize("slices", [1, 2])
def test_axes_of_a_mesh_may_share_a_side_of_the_torus(kind, sides, sizes, slices):
  """Checks that tensor's chips are those next to one another."""
  replica, *others = sizes
  chips = chips_of(kind, *sides, slices=slices)
  mesh = sharding.make_mesh((slices * replica, *others), chips)
  assert mesh.devices.shape == (slices * replica, *others)
  assert {chip.id for chip in mesh.devices.flat} == {chip.id for chip in chips}
  for ring in mesh.devices.reshape(-1, sizes[-1]):
    corners = [chip.coords for chip in ring]
    widths = [max(side) - min(side) + 1 for side in zip(*corners)]
    assert math.prod(widths) == sizes[-1] and len({chip.slice_index for chip in ring}) == 1


@pytest.mark.parametrize(
  "kind, sides, sizes",
  [
    ("TPU v5 lite", (2, 4, 1), (1, 4, 1, 2)),
    ("TPU v5 lite", (4, 4, 1), (1, 16, 1, 1)),
    ("TPU v5 lite", (16, 16, 1), (1, 32, 2, 4)),
    ("TPU v6 lite", (4, 4, 1), (1, 4, 1, 4)),
    ("TPU v5p", (4, 4, 4), (1, 16, 4, 1)),
  ],
)
def test_a_mesh_that_jax_lays_itself_is_as_it_lays_it(kind, sides, sizes):
  chips = chips_of(kind, *sides)
  assert sharding.make_mesh(sizes, chips) == jax.make_mesh(
    sizes, sharding.AXES, devices=chips, axis_types=(AxisType.Auto,) * 4
  )


def test_chips_that_make_no_torus_are_refused():
  chips = chips_of("TPU v4", 4, 4, 1)
  with pytest.raises(
    SettingError, match="mesh: jax cannot lay .*'tensor': 3.* 15 devices"
  ) as error:
    sharding.make_mesh((1, 5, 1, 3), chips[:-1])
  assert "\n" not in str(error.value)


def test_a_mesh_that_would_cut_parameters_across_slices_is_refused():
  chips = [Chip(id, id // 4) for id in range(8)]
  with pytest.raises(
    SettingError, match="mesh.replica=1: there are 2 slices .* mesh.replica=2 or a multiple of it"
  ):
    sharding.make_mesh((1, 8, 1, 1), chips)
  with pytest.raises(SettingError, match=r"mesh.replica=2: there are 2 slices of \[2, 4\] devices"):
    sharding.make_mesh((2, 3, 1, 1), chips[:6])
  machines = [dataclasses.replace(chip, platform="gpu") for chip in chips]
  # GPUs of several machines: parameters may lie across them
  assert len(sharding.slice_sizes(machines)) == 1
