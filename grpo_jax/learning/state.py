"""Defines the state that an update changes, as one pytree, and its shardings."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from grpo_jax.aliases import Json, Tree
from grpo_jax.models.decoder import Params
from grpo_jax.types import Array

Trees = dict[str, Params]

# Names of the trees in `TrainState.params`, as checkpoints have them.
MODEL = "policy"  # what is trained: the policy, or a reward model
CRITIC = "critic"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Everything that an update changes; a checkpoint of it restores the learner."""

  step: Array  # [] int32, updates applied so far, by which the schedule gives the learning rate
  params: Trees  # {MODEL: tree}, and CRITIC where there is one; float32 masters
  opt_state: optax.OptState  # moments in the shardings of their parameters
  bad_steps: Array  # [] int32, updates skipped in a row because a number was not finite
  skipped: Array  # [] int32, updates skipped in all

  @property
  def model(self) -> Params:
    """Tree of the policy or reward model that is trained."""
    return self.params[MODEL]


def create(params: Trees, tx: optax.GradientTransformation) -> TrainState:
  """Returns the state before the first update; it holds `params` themselves, not copies."""
  layout = jax.tree.map(lambda a: a.sharding, abstract(params, tx))

  def start(params):
    zero = jnp.zeros((), jnp.int32)
    return tx.init(params), zero, zero, zero

  shardings = (layout.opt_state, layout.step, layout.bad_steps, layout.skipped)
  opt_state, step, bad_steps, skipped = jax.jit(start, out_shardings=shardings)(params)
  return TrainState(
    step=step, params=params, opt_state=opt_state, bad_steps=bad_steps, skipped=skipped
  )


def abstract(params: Trees, tx: optax.GradientTransformation) -> TrainState:
  """Returns `create(params, tx)` as shapes, dtypes and shardings, with nothing allocated.

  Args:
    params: arrays, or `ShapeDtypeStruct`s with a `sharding`.
    tx: the optimizer.
  """
  sharding = replicated(params)
  shardings = opt_state_shardings(tx, params)
  scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding)

  def struct(array, sharding):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

  fields: Json = {  # shapes in the place of arrays
    "step": scalar,
    "params": jax.tree.map(lambda p: struct(p, p.sharding), params),
    "opt_state": jax.tree.map(struct, jax.eval_shape(tx.init, params), shardings),
    "bad_steps": scalar,
    "skipped": scalar,
  }
  return TrainState(**fields)


def opt_state_shardings(tx: optax.GradientTransformation, params: Trees) -> Tree:
  """Returns the shardings of `tx.init(params)`: moments like their parameters, the rest replicated.

  Args:
    tx: the optimizer.
    params: arrays, or `ShapeDtypeStruct`s with a `sharding`.
  """
  shapes = jax.eval_shape(tx.init, params)
  shardings = jax.tree.map(lambda p: p.sharding, params)
  scalar = replicated(params)

  def masked(x):  # the place of a parameter that belongs to another part of `optax.partition`
    return isinstance(x, optax.MaskedNode)

  return optax.tree_map_params(
    tx,
    lambda moment, sharding: moment if masked(moment) else sharding,
    shapes,
    shardings,
    transform_non_params=lambda _: scalar,
    is_leaf=masked,
  )


def replicated(params: Trees) -> Sharding:
  """Returns the sharding that puts a whole array on every device that holds `params`."""
  sharding = jax.tree.leaves(params)[0].sharding
  if isinstance(sharding, NamedSharding):
    return NamedSharding(sharding.mesh, PartitionSpec())
  return sharding
