"""Defines groups with their rewards, and chooses some of them from one batch or several."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import combine
from grpo_jax.types import TRUNCATED, Example, KnownRollouts, KnownScored, Prompts, ScoredRollouts

R = TypeVar("R", bound=KnownRollouts)


class Scored(NamedTuple):
  """A batch of P groups with their examples and rewards; the same on every process."""

  examples: list[Example | None]  # [P]
  rollouts: KnownScored  # sampled or on the host
  faults: list[combine.Fault]
  cut_off: float  # nats that top-k, top-p and min-p cut off, summed over all tokens


def known(batch: Scored) -> np.ndarray:
  """Returns where the rewards of a batch on the host judge a whole step, `[P, G, L]` bool.

  The last step of a truncated sample may be incomplete, and the rewards of a sample on which one
  failed are not trusted.
  """
  r = batch.rollouts
  return r.given & ~failed(batch)[..., None] & ~(last_tokens(r) & (r.ended == TRUNCATED)[..., None])


def failed(batch: Scored, reward: str = "") -> np.ndarray:
  """Returns the samples `[P, G]` on which `reward` failed; any reward if it is empty."""
  mask = np.zeros(batch.rollouts.lengths.shape, bool)
  for fault in batch.faults:
    mask[fault.prompt, fault.sample] |= reward in ("", fault.name)
  return mask


def last_tokens(r: KnownRollouts) -> np.ndarray:
  """Returns the mask of the last token of each completion, `[P, G, L]` bool."""
  return np.arange(r.tokens.shape[2]) == r.lengths[..., None] - 1


def select(batch: Scored, keep: Sequence[int]) -> Scored:
  """Returns the groups with these indices, in this order."""
  return choose([batch], keep)


def padded(places: Sequence[int], prompts: int) -> list[int]:
  """Returns the first `prompts` places, with -1 for each that is missing."""
  return [*places[:prompts], *[-1] * (prompts - len(places))]


def joined(batches: Sequence[Scored]) -> Scored:
  """Returns all groups of several batches in order."""
  if len(batches) == 1:
    return batches[0]
  return choose(batches, range(sum(len(batch.examples) for batch in batches)))


def choose(batches: Sequence[Scored], places: Sequence[int]) -> Scored:
  """Returns the groups at `places` of the joined batches; -1 stands for an empty group.

  Arrays on the mesh stay there, and the mesh must divide the number of places.
  """
  width = max(batch.rollouts.prompts.tokens.shape[1] for batch in batches)
  examples = [example for batch in batches for example in batch.examples] + [None]
  starts = np.cumsum([0] + [len(batch.examples) for batch in batches])
  new_place = {old: new for new, old in enumerate(places)}
  faults = []
  for batch, start in zip(batches, starts):
    for fault in batch.faults:
      if (old := int(fault.prompt + start)) in new_place:
        faults.append(fault._replace(prompt=new_place[old]))
  take = functools.partial(_take, np.asarray(places, np.int32))
  rollouts = jax.tree.map(take, *[widen(batch.rollouts, width) for batch in batches])
  cut_off = sum(batch.cut_off for batch in batches)
  return Scored([examples[place] for place in places], rollouts, faults, cut_off)


def with_rewards(
  r: KnownRollouts, rewards: np.ndarray, given: np.ndarray, components: np.ndarray
) -> KnownScored:
  """Returns the rollouts with these rewards in place of any others."""
  new = {"rewards": rewards, "given": given, "components": components}
  return ScoredRollouts(**vars(r) | new)


def widen(rollouts: R, width: int) -> R:
  """Returns rollouts with prompts padded to `width`."""
  prompts = rollouts.prompts
  tokens = np.pad(prompts.tokens, [(0, 0), (0, width - prompts.tokens.shape[1])])
  return dataclasses.replace(rollouts, prompts=Prompts(tokens, prompts.lengths))


def _take(index: np.ndarray, *arrays: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
  """Returns the entries `index` of the joined arrays `[P, ...]`, zeros where it is -1."""
  if isinstance(arrays[0], jax.Array):
    return _jitted_take(arrays[0].sharding)(arrays, index)
  empty = np.zeros((1, *arrays[0].shape[1:]), arrays[0].dtype)
  return np.concatenate([*arrays, empty])[index]


@functools.cache
def _jitted_take(sharding: jax.sharding.Sharding) -> Callable[..., jax.Array]:
  return jax.jit(_take_on_mesh, out_shardings=sharding)


def _take_on_mesh(arrays: tuple[jax.Array, ...], index: jax.Array) -> jax.Array:
  exists = (index >= 0).reshape(-1, *[1] * (arrays[0].ndim - 1))
  return jnp.where(exists, jnp.concatenate(arrays)[jnp.maximum(index, 0)], 0)
