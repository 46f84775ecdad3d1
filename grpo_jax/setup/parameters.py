"""Makes the parameter trees that an update changes, as arrays or as shapes alone."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from grpo_jax.aliases import Tree
from grpo_jax.errors import CheckpointError
from grpo_jax.learning.state import CRITIC, MODEL
from grpo_jax.models import heads
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.lora import split
from grpo_jax.run.checksums import checksums


def params(decoder: Decoder, model: Tree, critic: bool) -> dict[str, Tree]:
  """Returns the trees that an update changes: the model, and a critic that starts from it.

  The critic has a copy, since an update frees each tree by itself.

  Args:
    decoder: of the policy or the reward model.
    model: its starting parameters; with adapters, what is trained (`adapters.fresh_adapters`).
    critic: whether there is one.
  """
  trees = {MODEL: model}
  if critic:
    head = jax.jit(heads.init_scalar, static_argnums=0, out_shardings=decoder.layout.replicated())
    trees[CRITIC] = copy(model) | {"value_head": head(decoder.config.width)}
  return trees


def abstract_params(decoder: Decoder, critic: bool) -> dict[str, Tree]:
  """Returns the trees of `params` as sharded ShapeDtypeStructs."""
  tree = abstract(decoder)
  tree = tree if decoder.lora is None else split(tree)[1]
  if not critic:
    return {MODEL: tree}
  head = jax.eval_shape(functools.partial(heads.init_scalar, decoder.config.width))
  everywhere = decoder.layout.replicated()
  return {
    MODEL: tree,
    CRITIC: tree | {"value_head": jax.tree.map(lambda x: _struct(x, everywhere), head)},
  }


def with_fresh_head(load: Callable[[], Tree], decoder: Decoder) -> Tree:
  """Returns a reward model with the parameters that `load` returns and a head that scores 0."""
  head = jax.jit(heads.init_score, static_argnums=0, out_shardings=decoder.layout.replicated())
  return load() | {"score": head(decoder.config.width)}


@jax.jit
def copy(params: Tree) -> Tree:
  """Returns a copy of a tree in the same shardings."""
  return jax.tree.map(jnp.copy, params)


def abstract(decoder: Decoder, dtype: str = "float32") -> Tree:
  """Returns the decoder's parameters of this dtype as sharded ShapeDtypeStructs."""
  make = functools.partial(_struct, dtype=dtype)
  return jax.tree.map(make, decoder.shapes(), decoder.shardings())


def _struct(
  x: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding, dtype: str = "float32"
) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)


def without(tree: dict[str, Tree], names: Sequence[str]) -> dict[str, Tree]:
  """Returns the tree without the parts of these names."""
  return {name: part for name, part in tree.items() if name not in names}


def check_fingerprint(tree: Tree, known: str | None, setting: str, use: str) -> str:
  """Refuses a tree that differs from what a run began with, and returns its fingerprint.

  It is for trees that no checkpoint holds, since they are read again from their source.

  Args:
    tree: as it was read.
    known: what this function returned when the run began; None at that time.
    setting: the setting that names the source, with its value, for the message.
    use: what the run did with the tree, for the message.
  """
  fingerprint = "".join(checksums(tree).values())
  if known not in (None, fingerprint):
    raise CheckpointError(
      f"{setting}: does not hold the parameters that {use}; put them back, or begin anew in "
      "another --workdir"
    )
  return fingerprint
