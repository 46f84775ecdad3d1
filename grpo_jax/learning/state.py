"""What an update changes, as one pytree, and how it is laid out over the devices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

Array = jax.Array

# Names of the trees in `TrainState.params`, as checkpoints have them.
MODEL = "policy"  # what is trained: the policy, or a reward model
CRITIC = "critic"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Everything that an update changes: a checkpoint of it is the whole of the learner."""

  step: Array  # [] int32, updates applied so far: where the learning rate schedule stands
  params: dict[str, Any]  # {MODEL: tree}, and CRITIC where there is one; float32 masters
  opt_state: optax.OptState  # moments in the shardings of their parameters
  bad_steps: Array  # [] int32, updates skipped in a row because a number was not finite
  skipped: Array  # [] int32, updates skipped in all

  @property
  def model(self) -> Any:
    """The tree of the policy or reward model that is trained."""
    return self.params[MODEL]


def create(params: dict[str, Any], tx: optax.GradientTransformation) -> TrainState:
  """A state that starts from `params` (held, not copied); the optimizer's part is made in its
  shards.

  Args:
    params: trees of arrays, placed as they will be trained.
    tx: the optimizer (`optim.make_optimizer`).
  """
  layout = jax.tree.map(lambda a: a.sharding, abstract(params, tx))

  def start(params):
    zero = jnp.zeros((), jnp.int32)
    return tx.init(params), zero, zero, zero

  shardings = (layout.opt_state, layout.step, layout.bad_steps, layout.skipped)
  opt_state, step, bad_steps, skipped = jax.jit(start, out_shardings=shardings)(params)
  return TrainState(
    step=step, params=params, opt_state=opt_state, bad_steps=bad_steps, skipped=skipped
  )


def abstract(params: dict[str, Any], tx: optax.GradientTransformation) -> TrainState:
  """The shapes, dtypes and shardings of `create(params, tx)`, with nothing allocated.

  A checkpoint is restored into it without first making a state to be thrown away.

  Args:
    params: arrays, or `ShapeDtypeStruct`s with a `sharding`.
    tx: the optimizer.
  """
  sharding = replicated(params)
  shardings = opt_state_shardings(tx, params)
  scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding)

  def struct(array, sharding):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

  return TrainState(
    step=scalar,
    params=jax.tree.map(lambda p: struct(p, p.sharding), params),
    opt_state=jax.tree.map(struct, jax.eval_shape(tx.init, params), shardings),
    bad_steps=scalar,
    skipped=scalar,
  )


def opt_state_shardings(tx: optax.GradientTransformation, params: dict[str, Any]) -> Any:
  """The shardings of `tx.init(params)`: each moment as its parameter, everything else on every
  device.

  Args:
    tx: the optimizer.
    params: arrays, or `ShapeDtypeStruct`s with a `sharding`.
  """
  shapes = jax.eval_shape(tx.init, params)
  shardings = jax.tree.map(lambda p: p.sharding, params)
  scalar = replicated(params)

  def masked(
    x,
  ):  # what stands in the state of one part (`optax.partition`) for the parameters of the others
    return isinstance(x, optax.MaskedNode)

  return optax.tree_map_params(
    tx,
    lambda moment, sharding: moment if masked(moment) else sharding,
    shapes,
    shardings,
    transform_non_params=lambda _: scalar,
    is_leaf=masked,
  )


def replicated(params: Any) -> Sharding:
  """The sharding that puts a whole array on every device that holds `params`."""
  sharding = jax.tree.leaves(params)[0].sharding
  return (
    NamedSharding(sharding.mesh, PartitionSpec())
    if isinstance(sharding, NamedSharding)
    else sharding
  )
