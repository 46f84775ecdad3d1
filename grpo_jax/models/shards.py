"""How parameters are cut over a mesh, and made whole again where a shard needs them."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from grpo_jax.distributed.sharding import Axis
from grpo_jax.models import lora

Array = jax.Array

GATHERED = "gathered weights"  # their name in what the backward pass may keep


def parameter_axes(head_dim: int, path: tuple, leaf: Any) -> tuple[Axis, ...]:
  """Returns the logical axes of a parameter by the name of its module; a stack of layers has axes
  before them.
  """
  table = {
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
  if name != "weight":  # of a vector or an adapter, of whose axes one is the weight's
    axes = {"bias": axes[:1], lora.A: (None, axes[-1]), lora.B: (axes[0], None)}.get(name, axes)
  return (None,) * (leaf.ndim - len(axes)) + axes


def spec_over(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
  """Returns the part of a spec that cuts over these mesh axes."""
  cuts = ((cut,) if isinstance(cut, str) else cut or () for cut in spec)
  return PartitionSpec(*(tuple(axis for axis in cut if axis in axes) or None for cut in cuts))


def gather(params: Any, shardings: Any, axes: Sequence[str], dtype: str) -> Any:
  """Returns parameters whole over these axes and in `dtype` where those cut them, as they are where
  not.

  Called in the body of a `jax.shard_map` over the axes. What else cuts a parameter (`tensor`) goes
  on to do so.

  Args:
    params: a tree of this device's shards.
    shardings: the PartitionSpec of each on the whole mesh.
    axes: of the `shard_map`.
    dtype: of what is sent and returned.
  """
  return jax.tree.map(functools.partial(_gather_one, tuple(axes), dtype), params, shardings)


def _gather_one(axes: tuple[str, ...], dtype: str, x: Array, spec: PartitionSpec) -> Array:
  mesh = jax.sharding.get_abstract_mesh()
  rest = tuple(axis for axis in mesh.axis_names if axis not in axes)
  over, kept = spec_over(spec, axes), spec_over(spec, rest)
  if not any(over):
    return x
  # Over the other axes, too, each shard is on its own: the compiler would make the array whole over
  # them first.
  each = functools.partial(gathered, over, str(x.dtype), dtype)
  x = jax.shard_map(
    each, mesh=mesh, in_specs=kept, out_specs=kept, axis_names=set(rest), check_vma=False
  )(x)
  return checkpoint_name(x, GATHERED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def gathered(spec: PartitionSpec, stored: str, dtype: str, x: Array) -> Array:
  """Returns the whole of a parameter, in `dtype`, in the body of a `jax.shard_map` that has a shard
  of it.

  The gradients of all shards are summed in float32 and scattered to where the shards are, in one
  reduce-scatter.

  Args:
    spec: how it is cut over the axes of the `shard_map`.
    stored: dtype of x, and of its gradient.
    dtype: of what is sent and returned.
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
