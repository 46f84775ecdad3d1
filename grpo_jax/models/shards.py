"""How parameters are sharded over a mesh, and gathered where a shard needs them whole."""

import functools
from collections.abc import Sequence

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from grpo_jax.distributed.sharding import Axis
from grpo_jax.models import lora
from grpo_jax.models.shape import Leaf, Params
from grpo_jax.types import Array

GATHERED = "gathered weights"  # name of gathered weights in rematerialization policies


def parameter_axes(head_dim: int, path: tuple, leaf: Leaf) -> tuple[Axis, ...]:
  """Returns the logical axes of a parameter, with None for the leading axes of a stack."""
  table: dict[str, tuple[Axis, ...]] = {
    "embed": ("vocab", "embed"),
    "unembed": ("vocab", "embed"),
    "q": (("heads", head_dim), "embed"),
    "k": (("kv_heads", head_dim), "embed"),
    "v": (("kv_heads", head_dim), "embed"),
    "o": ("embed", ("heads", head_dim)),
    "gate": ("mlp", "embed"),
    "up": ("mlp", "embed"),
    "down": ("embed", "mlp"),
  }
  *_, module, name = (p.key for p in path)
  axes = table.get(module, (None,))
  if name != "weight":  # biases and LoRA factors share one axis with the weight
    others = {"bias": axes[:1], lora.A: (None, axes[-1]), lora.B: (axes[0], None)}
    axes = others.get(name, axes)
  return (None,) * (leaf.ndim - len(axes)) + axes


def spec_over(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
  """Returns the part of a spec that shards over these mesh axes."""
  dims = ((dim,) if isinstance(dim, str) else dim or () for dim in spec)
  return PartitionSpec(*(tuple(axis for axis in dim if axis in axes) or None for dim in dims))


def gather(params: Params, specs: Params, axes: Sequence[str], dtype: str) -> Params:
  """Returns parameters gathered over these mesh axes; those that they do not shard are unchanged.

  Call it in the body of a `jax.shard_map` over the axes. Parameters remain sharded
  over other axes (`tensor`).

  Args:
    params: a tree of this device's shards.
    specs: the PartitionSpec of each parameter on the whole mesh.
    axes: of the `shard_map`.
    dtype: of the gathered parameters, in which they are also sent.
  """
  return jax.tree.map(functools.partial(_gather_one, tuple(axes), dtype), params, specs)


def _gather_one(axes: tuple[str, ...], dtype: str, x: Array, spec: PartitionSpec) -> Array:
  mesh = jax.sharding.get_abstract_mesh()
  rest = tuple(axis for axis in mesh.axis_names if axis not in axes)
  over, kept = spec_over(spec, axes), spec_over(spec, rest)
  if not any(over):
    return x
  # Manual over the other axes, too: otherwise the compiler gathers the array over them first.
  gather_shard = functools.partial(gathered, over, str(x.dtype), dtype)
  x = jax.shard_map(
    gather_shard, mesh=mesh, in_specs=kept, out_specs=kept, axis_names=set(rest), check_vma=False
  )(x)
  return checkpoint_name(x, GATHERED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def gathered(spec: PartitionSpec, stored: str, dtype: str, x: Array) -> Array:
  """Returns a whole parameter in `dtype`, from the shard of each device in a `jax.shard_map`.

  The gradient is summed over shards in float32 and scattered to them in one reduce-scatter.

  Args:
    spec: how it is sharded over the axes of the `shard_map`.
    stored: dtype of x and of its gradient.
    dtype: of the result, in which x is also sent.
    x: this device's shard.
  """
  x = x.astype(dtype)
  for dim, axes in enumerate(spec):
    x = jax.lax.all_gather(x, axes, axis=dim, tiled=True) if axes else x
  return x


def _gathered_forward(spec: PartitionSpec, stored: str, dtype: str, x: Array) -> tuple[Array, None]:
  return gathered(spec, stored, dtype, x), None


def _gathered_backward(
  spec: PartitionSpec, stored: str, dtype: str, kept: None, g: Array
) -> tuple[Array]:
  g = g.astype("float32")
  for dim, axes in enumerate(spec):
    g = jax.lax.psum_scatter(g, axes, scatter_dimension=dim, tiled=True) if axes else g
  return (g.astype(stored),)


gathered.defvjp(_gathered_forward, _gathered_backward)
